"""Rows of the table for what controllers serve, to brokers and to `--bootstrap-controller`: played against one."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from oncelog.core.errors import ErrorCode
from oncelog.protocol.api import encode_request
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import encode_request_frame
from tests.hostile.amplification import MIB, Row, Values
from tests.hostile.wire import request_of

CONTROLLER: Final = {"process.roles": "controller", "node.id": 100}
_MANY: Final = 30_000
_SOME: Final = 5_000


def _partitions(count: int, name: str = "partition_index", **values: Any) -> list[Values]:
    return [{name: index, **values} for index in range(count)]


def _enveloped(api: ApiKey, version: int, values: Values) -> Values:
    body = encode_request(api, version, request_of(api, values))
    frame = b"".join(encode_request_frame(api, version, 1, "hostile", body))
    principal = b"\0\0\x05User\x0aANONYMOUS\0\0"
    return {"request_data": frame[4:], "request_principal": principal, "client_host_address": b"\x7f\0\0\x01"}


_NEW_TOPICS: Final = {"topics": [{"name": f"t{n}", "num_partitions": 1, "replication_factor": 1} for n in range(_SOME)]}

CONTROLLER_ROWS: Final = (
    Row(ApiKey.API_VERSIONS, 3, "long names", {"client_software_name": "x" * 30_000, "client_software_version": "1"},
        50),
    Row(ApiKey.SASL_HANDSHAKE, 1, "where there is no login", {"mechanism": "x" * 30_000}, 50),
    Row(ApiKey.SASL_AUTHENTICATE, 2, "where there is no login", {"auth_bytes": bytes(900_000)}, 10),
    Row(ApiKey.FETCH, 17, "partitions that there are not",
        {"max_wait_ms": 0, "max_bytes": MIB, "topics": [
            {"topic_id": UUID(int=7), "partitions": _partitions(_SOME, "partition", fetch_offset=0)}]}),
    Row(ApiKey.FETCH_SNAPSHOT, 1, "partitions that there are not",
        {"replica_id": -1, "max_bytes": MIB, "topics": [
            {"name": "t", "partitions": _partitions(_SOME, "partition", snapshot_id={"end_offset": 0, "epoch": 0})}]}),
    Row(ApiKey.DESCRIBE_QUORUM, 2, "partitions that there are not",
        {"topics": [{"topic_name": f"t{n}", "partitions": _partitions(1)} for n in range(_MANY)]}),
    Row(ApiKey.DESCRIBE_CLUSTER, 1, "again and again", {"endpoint_type": 2}, 200),
    Row(ApiKey.ENVELOPE, 0, "topics in an envelope", _enveloped(ApiKey.CREATE_TOPICS, 7, _NEW_TOPICS),
        answer_bytes_max=2 * MIB, cpu_s_max=10),
    Row(ApiKey.BROKER_REGISTRATION, 4, "listeners without end",
        {"broker_id": 1, "cluster_id": "x", "incarnation_id": UUID(int=1),
         "listeners": [{"name": f"n{n}", "host": "h", "port": 1, "security_protocol": 0} for n in range(_MANY)]}),
    Row(ApiKey.BROKER_HEARTBEAT, 1, "a broker that nobody knows",
        {"broker_id": 9, "broker_epoch": 1, "offline_log_dirs": [UUID(int=n) for n in range(_MANY)]}),
    Row(ApiKey.CONTROLLER_REGISTRATION, 0, "listeners without end",
        {"controller_id": 9, "incarnation_id": UUID(int=1),
         "listeners": [{"name": f"n{n}", "host": "h", "port": 1, "security_protocol": 0} for n in range(_MANY)]}),
    Row(ApiKey.ALTER_PARTITION, 3, "partitions that there are not",
        {"broker_id": 1, "broker_epoch": 1, "topics": [
            {"topic_id": UUID(int=7), "partitions": _partitions(_MANY, leader_epoch=0, partition_epoch=0)}]}),
    Row(ApiKey.ALLOCATE_PRODUCER_IDS, 0, "a broker that nobody knows", {"broker_id": 9, "broker_epoch": 1}, 100),
    Row(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, "partitions that there are not",
        {"broker_id": 1, "broker_epoch": 1, "directories": [{"id_": UUID(int=3), "topics": [
            {"topic_id": UUID(int=7), "partitions": _partitions(_MANY)}]}]}),
    Row(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, "many partitions",
        {"topics": [{"name": "t", "partition_indexes": list(range(100_000))}]}, answer_bytes_max=4 * MIB),
    Row(ApiKey.UNREGISTER_BROKER, 0, "brokers that there are not", lambda number: {"broker_id": number + 50}, 100),
    Row(ApiKey.ADD_RAFT_VOTER, 0, "listeners without end",
        {"voter_id": 7, "voter_directory_id": UUID(int=1), "timeout_ms": 1000,
         "listeners": [{"name": f"n{n}", "host": "h", "port": 1} for n in range(_MANY)]}),
    Row(ApiKey.REMOVE_RAFT_VOTER, 0, "voters that there are not",
        lambda number: {"voter_id": number + 50, "voter_directory_id": UUID(int=1)}, 100),
    Row(ApiKey.ELECT_LEADERS, 2, "partitions that there are not",
        {"topic_partitions": [{"topic": "t", "partitions": list(range(_MANY))}]}, answer_bytes_max=4 * MIB),
    Row(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, "partitions that there are not",
        {"topics": [{"name": "no", "partitions": _partitions(_SOME, replicas=[7])}]}, answer_bytes_max=4 * MIB),
    Row(ApiKey.UPDATE_FEATURES, 1, "features that there are not",
        {"feature_updates": [{"feature": f"f{n}", "max_version_level": 1, "upgrade_type": 1} for n in range(_SOME)]},
        answer_bytes_max=4 * MIB),
    Row(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, "more than are changed at a time",
        {"deletions": [{"name": f"user-{n}", "mechanism": 1} for n in range(_MANY)]}, answer_bytes_max=4 * MIB,
        codes=frozenset({ErrorCode.POLICY_VIOLATION})),
    Row(ApiKey.CREATE_ACLS, 3, "where nobody asks them", {"creations": [
        {"resource_type": 2, "resource_name": f"t{n}", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
         "operation": 3, "permission_type": 3} for n in range(_SOME)]}, answer_bytes_max=4 * MIB),
    Row(ApiKey.DELETE_ACLS, 3, "where nobody asks them", {"filters": [
        {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}] * _SOME},
        answer_bytes_max=4 * MIB),
    Row(ApiKey.ALTER_CLIENT_QUOTAS, 1, "entities that make no sense",
        {"entries": [{"entity": [{"entity_type": f"t{n}", "entity_name": "x"}], "ops": []} for n in range(_SOME)]},
        answer_bytes_max=4 * MIB),
    Row(ApiKey.CREATE_TOPICS, 7, "for brokers that there are not", _NEW_TOPICS, answer_bytes_max=2 * MIB, cpu_s_max=10),
    Row(ApiKey.DELETE_TOPICS, 5, "topics that there are not", {"topic_names": [f"no-{n}" for n in range(_MANY)]},
        answer_bytes_max=4 * MIB),
    Row(ApiKey.CREATE_PARTITIONS, 3, "topics that there are not",
        {"topics": [{"name": f"no-{n}", "count": 2, "assignments": None} for n in range(_SOME)]},
        answer_bytes_max=4 * MIB),
    Row(ApiKey.ALTER_CONFIGS, 2, "one topic, many times",
        {"resources": [{"resource_type": 2, "resource_name": "t", "configs": []}] * _SOME}, answer_bytes_max=4 * MIB),
    Row(ApiKey.DESCRIBE_CONFIGS, 4, "the controller, many times",
        {"resources": [{"resource_type": 4, "resource_name": "100", "configuration_keys": None}] * _SOME}),
    Row(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, "one topic, many times",
        {"resources": [{"resource_type": 2, "resource_name": "t", "configs": []}] * _SOME}, answer_bytes_max=4 * MIB),
)  # fmt: skip
