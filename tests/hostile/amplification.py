"""The table: requests that cost more than they look like, and how much they may.

Each API has a row at least. Bounds are on the whole row, and wide: they tell what is bounded from what grows with what
a client sends. The bound on a stretch of the loop is on each request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from oncelog.core.broker_config import STANDARD_AUTHORIZER
from oncelog.core.errors import ErrorCode
from oncelog.protocol.api_keys import ApiKey
from tests.hostile.aborted_log import ABORTED_TOPIC
from tests.unit.server.harness import batch_of

MIB: Final = 1 << 20
Values = Mapping[str, Any]

FEW: Final = {"offsets.topic.num.partitions": 4, "transaction.state.log.num.partitions": 4}
OPEN: Final = {
    **FEW,
    "oncelog.partitions.max": 18_000,
    "oncelog.transactional.ids.max": 500,
    "oncelog.offsets.max.bytes": 16 * MIB,
    "group.initial.rebalance.delay.ms": 0,
}
WITH_ACLS: Final = {**FEW, "authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
"""ANONYMOUS may do everything: ACLs and what brokers send each other are served then."""


@dataclass(frozen=True, slots=True)
class Row:
    api: ApiKey
    version: int
    name: str
    values: Values | Callable[[int], Values]
    """Of the request, or of the one with this number."""
    count: int = 1
    """How often it is sent, on one connection, each time after the answer."""
    is_pipelined: bool = False
    """All of them are sent before an answer is read."""
    connections: int = 1
    """So many send the same at the same time."""
    before: tuple[tuple[ApiKey, int, Values], ...] = ()
    """Requests that come first and are not measured."""
    acls: bool = False
    """On a broker that asks them."""
    cpu_s_max: float = 5
    stretch_s_max: float = 0.05
    memory_bytes_max: int = 32 * MIB
    """By which the process may have grown in the end."""
    peak_bytes_max: int = 64 * MIB
    """By which it may have grown in between."""
    answer_bytes_max: int = MIB
    log_bytes_max: int = 400_000
    codes: frozenset[ErrorCode] = frozenset()
    """Error codes that the answers must have between them, if that is part of the bound."""

    def values_of(self, number: int) -> Values:
        return self.values(number) if callable(self.values) else self.values


def _codes(*codes: ErrorCode) -> frozenset[ErrorCode]:
    return frozenset(codes)


def _long_id(number: int) -> str:
    return f"{number:08d}" * 4_000


def _join(group: str, metadata: bytes) -> Values:
    protocols = [{"name": "range", "metadata": metadata}]
    return {"group_id": group, "session_timeout_ms": 300_000, "rebalance_timeout_ms": 300_000,
            "protocol_type": "consumer", "protocols": protocols}  # fmt: skip


def _create(*topics: tuple[str, int]) -> Values:
    return {"topics": [{"name": name, "num_partitions": count, "replication_factor": 1} for name, count in topics]}


def _init(transactional_id: str, timeout_ms: int = 1_000) -> Values:
    return {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms, "producer_id": -1,
            "producer_epoch": -1}  # fmt: skip


def _partitions(count: int, name: str = "partition_index", **values: Any) -> list[Values]:
    return [{name: index, **values} for index in range(count)]


def _set(name: str, value: str) -> Values:
    return {"name": name, "value": value}


BATCH: Final = batch_of([b"v"], timestamp_ms=1)
VAST: Final = ((ApiKey.CREATE_TOPICS, 7, _create(("vast", 10_000))),)
WIDE: Final = ((ApiKey.CREATE_TOPICS, 7, _create(("wide", 3_000))),)
ANY_ACL: Final = {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
                  "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}  # fmt: skip


def _acl(number: int) -> Values:
    return {"resource_type": 2, "resource_name": f"topic-{number}", "resource_pattern_type": 3, "host": "*",
            "principal": f"User:user-{number}", "operation": 3, "permission_type": 3}  # fmt: skip


def _credential(number: int) -> Values:
    return {"name": f"user-{number}", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"p" * 32}


def _offsets(count: int) -> list[Values]:
    return _partitions(count, committed_offset=1, committed_metadata="")


ROWS: Final = (
    Row(ApiKey.PRODUCE, 9, "partitions that there are not",
        {"acks": 1, "timeout_ms": 1_000,
         "topic_data": [{"name": "nowhere", "partition_data": _partitions(8_000, "index", records=BATCH)}]}),
    Row(ApiKey.PRODUCE, 9, "the first batches of many partitions",
        {"acks": 1, "timeout_ms": 1_000,
         "topic_data": [{"name": "wide", "partition_data": _partitions(3_000, "index", records=BATCH)}]},
        before=WIDE, cpu_s_max=20, memory_bytes_max=128 * MIB),
    Row(ApiKey.PRODUCE, 9, "many partitions that are refused together",
        {"acks": 7, "timeout_ms": 1_000,
         "topic_data": [{"name": "wide", "partition_data": _partitions(49_000, "index", records=None)}]},
        answer_bytes_max=8 * MIB, memory_bytes_max=128 * MIB, codes=_codes(ErrorCode.INVALID_REQUIRED_ACKS)),
    Row(ApiKey.FETCH, 11, "one partition, many times",
        {"max_wait_ms": 200, "min_bytes": 1, "max_bytes": MIB, "topics": [{"topic": "wide", "partitions": [
            {"partition": 0, "fetch_offset": 1, "partition_max_bytes": MIB}] * 36_000}]}, before=WIDE),
    Row(ApiKey.FETCH, 11, "partitions that are to be forgotten",
        {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": MIB, "topics": [],
         "forgotten_topics_data": [{"topic": "wide", "partitions": list(range(199_000))}]}),
    Row(ApiKey.FETCH, 11, "many partitions, waiting",
        {"max_wait_ms": 200, "min_bytes": 10 * MIB, "max_bytes": MIB, "topics": [{"topic": "wide", "partitions":
            _partitions(3_000, "partition", fetch_offset=0, partition_max_bytes=MIB)}]},
        5, before=WIDE, cpu_s_max=15, memory_bytes_max=128 * MIB, answer_bytes_max=2 * MIB),
    Row(ApiKey.FETCH, 11, "a range with many aborted transactions",
        {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 55 * MIB, "isolation_level": 1, "topics": [
            {"topic": ABORTED_TOPIC, "partitions": [{"partition": 0, "fetch_offset": 0,
                                                     "partition_max_bytes": 55 * MIB}]}]}, 5),
    Row(ApiKey.LIST_OFFSETS, 7, "many partitions",
        {"replica_id": -1, "topics": [{"name": "wide", "partitions": _partitions(3_000, timestamp=-1)}]}, 5,
        before=WIDE, cpu_s_max=20, memory_bytes_max=128 * MIB),
    Row(ApiKey.LIST_OFFSETS, 7, "many partitions, on many connections",
        {"replica_id": -1, "topics": [{"name": "wide", "partitions": _partitions(1_900, timestamp=-1)}]},
        connections=100, before=WIDE, cpu_s_max=20, stretch_s_max=0.1, memory_bytes_max=64 * MIB),
    Row(ApiKey.METADATA, 12, "all topics", {"topics": None}, 20, before=WIDE, cpu_s_max=15),
    Row(ApiKey.METADATA, 12, "all topics, on many connections", {"topics": None}, connections=40, before=VAST,
        cpu_s_max=20),
    Row(ApiKey.METADATA, 12, "one id, with many names",
        {"topics": [{"topic_id": UUID(int=7), "name": f"n{n}"} for n in range(30_000)]}, answer_bytes_max=1_000),
    Row(ApiKey.METADATA, 12, "topics that are asked for to be made",
        lambda number: {"topics": [{"name": f"auto_{number}_{n}"} for n in range(500)],
                        "allow_auto_topic_creation": True},
        20, cpu_s_max=30, memory_bytes_max=64 * MIB, log_bytes_max=4 * MIB, codes=_codes(ErrorCode.POLICY_VIOLATION)),
    Row(ApiKey.OFFSET_COMMIT, 8, "offsets of many partitions",
        {"group_id": "g", "topics": [{"name": "wide", "partitions": _offsets(3_000)}]}, 3, before=WIDE,
        memory_bytes_max=64 * MIB),
    Row(ApiKey.OFFSET_FETCH, 8, "one group, many times", {"groups": [{"group_id": "told", "topics": None}] * 2_300},
        before=(*WIDE, (ApiKey.OFFSET_COMMIT, 8, {"group_id": "told", "topics": [{"name": "wide", "partitions":
            _partitions(220, committed_offset=1, committed_metadata="m" * 4_000)}]}))),
    Row(ApiKey.DELETE_GROUPS, 2, "a group with many offsets", {"groups_names": ["full"]},
        before=(*VAST, (ApiKey.OFFSET_COMMIT, 8, {"group_id": "full", "topics": [
            {"name": "vast", "partitions": _offsets(10_000)}]})), codes=_codes(ErrorCode.NONE)),
    Row(ApiKey.OFFSET_COMMIT, 8, "offsets without end, with long metadata",
        lambda number: {"group_id": f"long-{number}", "topics": [
            {"name": "wide", "partitions": _partitions(220, committed_offset=1, committed_metadata="m" * 4_000)}]},
        30, before=WIDE, memory_bytes_max=64 * MIB, codes=_codes(ErrorCode.NONE, ErrorCode.POLICY_VIOLATION)),
    Row(ApiKey.OFFSET_COMMIT, 8, "topics without an offset",
        {"group_id": "g", "topics": [{"name": f"t{n}", "partitions": []} for n in range(100_000)]},
        answer_bytes_max=2 * MIB, memory_bytes_max=64 * MIB),
    Row(ApiKey.OFFSET_COMMIT, 8, "offsets of partitions that there are not",
        {"group_id": "g", "topics": [{"name": "nowhere", "partitions": _offsets(30_000)}]}),
    Row(ApiKey.OFFSET_FETCH, 8, "many numbers",
        {"groups": [{"group_id": "g", "topics": [{"name": "wide", "partition_indexes": list(range(150_000))}]}]},
        before=WIDE, answer_bytes_max=5 * MIB, memory_bytes_max=128 * MIB),
    Row(ApiKey.OFFSET_FETCH, 8, "one topic, many times", {"groups": [
        {"group_id": "told", "topics": [{"name": "wide", "partition_indexes": [0]}] * 40_000}]}, before=WIDE,
        answer_bytes_max=10_000),
    Row(ApiKey.OFFSET_FETCH, 7, "many numbers of one group",
        {"group_id": "told", "topics": [{"name": "wide", "partition_indexes": list(range(199_000))}]},
        before=WIDE, answer_bytes_max=5 * MIB, memory_bytes_max=128 * MIB),
    Row(ApiKey.FIND_COORDINATOR, 4, "ids of groups that are long and new each time",
        lambda number: {"key_type": 0, "coordinator_keys": [_long_id(number)]}, 50),
    Row(ApiKey.FIND_COORDINATOR, 4, "many groups",
        {"key_type": 0, "coordinator_keys": [f"g{n}" for n in range(30_000)]},
        answer_bytes_max=4 * MIB, memory_bytes_max=64 * MIB),
    Row(ApiKey.JOIN_GROUP, 5, "members that never come back with their id", _join("waiting", b""), 1_200,
        codes=_codes(ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED)),
    Row(ApiKey.JOIN_GROUP, 5, "members that never come back, with much to tell",
        _join("talkative", bytes(900_000)), 100,
        memory_bytes_max=80 * MIB, codes=_codes(ErrorCode.MEMBER_ID_REQUIRED)),
    Row(ApiKey.JOIN_GROUP, 5, "a group with more to tell than there is room for", _join("large", bytes(20 * MIB)), 5,
        memory_bytes_max=96 * MIB, codes=_codes(ErrorCode.GROUP_MAX_SIZE_REACHED)),
    Row(ApiKey.JOIN_GROUP, 5, "protocols without end",
        {**_join("many", b""), "protocols": [{"name": f"r{n}", "metadata": b""} for n in range(60_000)]},
        codes=_codes(ErrorCode.POLICY_VIOLATION)),
    Row(ApiKey.HEARTBEAT, 3, "members that nobody knows",
        lambda number: {"group_id": _long_id(number), "generation_id": 1, "member_id": _long_id(number)}, 100),
    Row(ApiKey.LEAVE_GROUP, 4, "members that nobody knows",
        {"group_id": "g", "members": [{"member_id": f"m{n}"} for n in range(100_000)]},
        answer_bytes_max=2 * MIB, memory_bytes_max=64 * MIB),
    Row(ApiKey.SYNC_GROUP, 4, "parts for members that nobody knows",
        {"group_id": "g", "generation_id": 1, "member_id": "m",
         "assignments": [{"member_id": f"m{n}", "assignment": b"x"} for n in range(50_000)]}),
    Row(ApiKey.DESCRIBE_GROUPS, 5, "one group, many times", {"groups": ["described"] * 10_000}, 20,
        before=((ApiKey.JOIN_GROUP, 3, {**_join("described", bytes(500_000)), "rebalance_timeout_ms": 1_000}),)),
    Row(ApiKey.LIST_GROUPS, 4, "states that there are not", {"states_filter": [f"s{n}" for n in range(50_000)]}),
    Row(ApiKey.SASL_HANDSHAKE, 1, "where there is no login", {"mechanism": _long_id(0)}, 100),
    Row(ApiKey.SASL_AUTHENTICATE, 2, "where there is no login", {"auth_bytes": bytes(900_000)}, 20),
    Row(ApiKey.API_VERSIONS, 3, "long names",
        {"client_software_name": _long_id(0), "client_software_version": "1"}, 100),
    Row(ApiKey.CREATE_TOPICS, 7, "partitions without end", lambda number: _create((f"many-{number}", 100)), 100,
        cpu_s_max=20, memory_bytes_max=64 * MIB, codes=_codes(ErrorCode.POLICY_VIOLATION)),
    Row(ApiKey.CREATE_TOPICS, 7, "many topics at once", _create(*((f"t_{n}", 1) for n in range(1_000))),
        cpu_s_max=10, memory_bytes_max=64 * MIB),
    Row(ApiKey.DELETE_TOPICS, 5, "topics that there are not", {"topic_names": [f"no-{n}" for n in range(90_000)]},
        answer_bytes_max=8 * MIB, memory_bytes_max=128 * MIB),
    Row(ApiKey.DELETE_RECORDS, 2, "many partitions",
        {"topics": [{"name": "wide", "partitions": _partitions(300, offset=0)}]}, before=WIDE, cpu_s_max=20,
        memory_bytes_max=128 * MIB),
    Row(ApiKey.INIT_PRODUCER_ID, 4, "transactional ids without end", lambda number: _init(f"id-{number}"), 600,
        cpu_s_max=10, codes=_codes(ErrorCode.NONE, ErrorCode.POLICY_VIOLATION)),
    Row(ApiKey.INIT_PRODUCER_ID, 4, "refusals that would name a long id in the log",
        lambda number: _init(_long_id(number), -1), 200, cpu_s_max=20),
    Row(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, "one partition, many times",
        {"topics": [{"topic": "wide", "partitions": [{"partition": 0, "leader_epoch": 0}] * 50_000}]}, before=WIDE),
    Row(ApiKey.ADD_PARTITIONS_TO_TXN, 5, "partitions of a stranger",
        {"transactions": [{"transactional_id": f"id-{n}"} for n in range(20_000)]}, 3),
    Row(ApiKey.ADD_PARTITIONS_TO_TXN, 3, "many partitions",
        {"v3_and_below_transactional_id": "nobody", "v3_and_below_topics": [
            {"name": "wide", "partitions": list(range(100_000))}]}, before=WIDE, memory_bytes_max=64 * MIB),
    Row(ApiKey.ADD_OFFSETS_TO_TXN, 3, "ids that nobody knows",
        lambda number: {"transactional_id": _long_id(number), "group_id": _long_id(number)}, 100),
    Row(ApiKey.END_TXN, 3, "ids that nobody knows", lambda number: {"transactional_id": _long_id(number)}, 50),
    Row(ApiKey.WRITE_TXN_MARKERS, 1, "markers of a stranger",
        {"markers": [{"producer_id": n, "topics": [{"name": "t", "partition_indexes": [0]}]} for n in range(10_000)]},
        3, codes=_codes(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)),
    Row(ApiKey.WRITE_TXN_MARKERS, 1, "markers for partitions that there are not",
        {"markers": [{"producer_id": 1, "topics": [{"name": "nowhere", "partition_indexes": list(range(100_000))}]}]},
        acls=True, cpu_s_max=10, memory_bytes_max=128 * MIB),
    Row(ApiKey.TXN_OFFSET_COMMIT, 3, "offsets of nobody's transaction",
        {"transactional_id": "nobody", "group_id": "g", "producer_id": 1, "topics": [
            {"name": "wide", "partitions": _offsets(3_000)}]}, before=WIDE, memory_bytes_max=64 * MIB),
    Row(ApiKey.DESCRIBE_ACLS, 3, "all of them", ANY_ACL, 20, acls=True,
        before=((ApiKey.CREATE_ACLS, 3, {"creations": [_acl(n) for n in range(2_000)]}),)),
    Row(ApiKey.CREATE_ACLS, 3, "many", {"creations": [_acl(n) for n in range(2_000)]}, 3, acls=True,
        log_bytes_max=2 * MIB),
    Row(ApiKey.CREATE_ACLS, 3, "more than are taken at a time", {"creations": [_acl(n) for n in range(20_000)]},
        acls=True, answer_bytes_max=2 * MIB, codes=_codes(ErrorCode.POLICY_VIOLATION)),
    Row(ApiKey.DELETE_ACLS, 3, "everything, many times", {"filters": [ANY_ACL] * 50_000}, acls=True,
        answer_bytes_max=4 * MIB, before=((ApiKey.CREATE_ACLS, 3, {"creations": [_acl(n) for n in range(1_000)]}),)),
    Row(ApiKey.DESCRIBE_CONFIGS, 4, "the broker, in many requests of one packet",
        {"resources": [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}]}, 500,
        is_pipelined=True),
    Row(ApiKey.DESCRIBE_CONFIGS, 4, "the broker, many times",
        {"resources": [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}] * 8_000}),
    Row(ApiKey.ALTER_CONFIGS, 2, "the broker, many times", {"resources": [
        {"resource_type": 4, "resource_name": "1", "configs": [_set("log.cleaner.backoff.ms", "15000")]}] * 5_000}),
    Row(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, "one partition, many times",
        {"dirs": [{"path": "/elsewhere", "topics": [{"name": "wide", "partitions": [0] * 100_000}]}]}, before=WIDE,
        codes=_codes(ErrorCode.LOG_DIR_NOT_FOUND)),
    Row(ApiKey.DESCRIBE_LOG_DIRS, 4, "one partition, many times",
        {"topics": [{"topic": "wide", "partitions": list(range(199_000))}]}, before=WIDE),
    Row(ApiKey.CREATE_PARTITIONS, 3, "topics that there are not", {"topics": [
        {"name": f"no-{n}", "count": 2, "assignments": None} for n in range(50_000)]}, answer_bytes_max=6 * MIB,
        memory_bytes_max=128 * MIB, codes=_codes(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)),
    Row(ApiKey.CREATE_PARTITIONS, 3, "partitions without end, of one topic",
        lambda number: {"topics": [{"name": "wide", "count": 9_000 + number, "assignments": None}]}, 50, before=WIDE,
        codes=_codes(ErrorCode.POLICY_VIOLATION)),
    Row(ApiKey.CREATE_DELEGATION_TOKEN, 3, "many renewers", {
        "owner_principal_type": "User", "owner_principal_name": "x" * 30_000,
        "renewers": [{"principal_type": "User", "principal_name": f"u{n}"} for n in range(50_000)]},
        codes=_codes(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)),
    Row(ApiKey.RENEW_DELEGATION_TOKEN, 2, "a long token", {"hmac": bytes(900_000)}, 20),
    Row(ApiKey.EXPIRE_DELEGATION_TOKEN, 2, "a long token", {"hmac": bytes(900_000)}, 20),
    Row(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, "many owners",
        {"owners": [{"principal_type": "User", "principal_name": f"u{n}"} for n in range(50_000)]}),
    Row(ApiKey.DELETE_GROUPS, 2, "groups that there are not", {"groups_names": [f"g{n}" for n in range(20_000)]},
        cpu_s_max=10, memory_bytes_max=64 * MIB),
    Row(ApiKey.ELECT_LEADERS, 2, "one partition, many times",
        {"topic_partitions": [{"topic": "wide", "partitions": [0] * 50_000}]}, before=WIDE, answer_bytes_max=2 * MIB,
        codes=_codes(ErrorCode.ELECTION_NOT_NEEDED)),
    Row(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, "one partition, many times", {"topics": [
        {"name": "wide", "partitions": [{"partition_index": 0, "replicas": [7]}] * 20_000}]}, before=WIDE,
        answer_bytes_max=3 * MIB, codes=_codes(ErrorCode.INVALID_REQUEST)),
    Row(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, "many partitions",
        {"topics": [{"name": "wide", "partition_indexes": list(range(100_000))}]}, before=WIDE),
    Row(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, "connections that are to be forbidden",
        {"resources": [{"resource_type": 4, "resource_name": "1", "configs": [_set("max.connections", "3")]}]}, 50,
        codes=_codes(ErrorCode.INVALID_CONFIG)),
    Row(ApiKey.OFFSET_DELETE, 0, "partitions that have none",
        {"group_id": "g", "topics": [{"name": "wide", "partitions": _partitions(199_000)}]}, before=WIDE,
        answer_bytes_max=2 * MIB, memory_bytes_max=64 * MIB),
    Row(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, "all of them, each many times",
        {"users": [{"name": f"user-{n % 1_000}"} for n in range(30_000)]}, acls=True,
        before=((ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {"upsertions": [_credential(n) for n in range(1_000)]}),)),
    Row(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, "many users", {"upsertions": [_credential(n) for n in range(5_000)]},
        acls=True, log_bytes_max=2 * MIB),
    Row(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, "more than are changed at a time",
        {"deletions": [{"name": f"user-{n}", "mechanism": 1} for n in range(50_000)]}, acls=True,
        answer_bytes_max=4 * MIB, memory_bytes_max=64 * MIB, codes=_codes(ErrorCode.POLICY_VIOLATION)),
    Row(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, "many components",
        {"components": [{"entity_type": f"t{n}", "match_type": 0, "match": "x"} for n in range(20_000)]}),
    Row(ApiKey.ALTER_CLIENT_QUOTAS, 1, "entities that make no sense",
        {"entries": [{"entity": [{"entity_type": f"t{n}", "entity_name": "x"}], "ops": []} for n in range(30_000)]},
        answer_bytes_max=4 * MIB, memory_bytes_max=64 * MIB),
    Row(ApiKey.DESCRIBE_CLUSTER, 1, "again and again", {"include_cluster_authorized_operations": True}, 500),
    Row(ApiKey.DESCRIBE_PRODUCERS, 0, "one partition, many times",
        {"topics": [{"name": "wide", "partition_indexes": [0] * 100_000}]}, before=WIDE),
    Row(ApiKey.DESCRIBE_TRANSACTIONS, 0, "ids that nobody knows",
        {"transactional_ids": [f"x{n}" for n in range(30_000)]}, answer_bytes_max=4 * MIB, memory_bytes_max=64 * MIB),
    Row(ApiKey.LIST_TRANSACTIONS, 2, "a pattern that would take for ever",
        {"transactional_id_pattern": "(.*a)" * 150 + "b", "duration_filter": -1}, 20,
        before=tuple((ApiKey.INIT_PRODUCER_ID, 4, _init("a" * 32_000 + str(n))) for n in range(50))),
    Row(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, "long subscriptions",
        {"group_id": "g", "member_id": "m", "subscribed_topic_names": [f"t{n}" for n in range(50_000)]}),
    Row(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, "many groups", {"group_ids": [f"g{n}" for n in range(30_000)]},
        answer_bytes_max=2 * MIB, memory_bytes_max=64 * MIB, codes=_codes(ErrorCode.UNSUPPORTED_VERSION)),
    Row(ApiKey.LIST_CONFIG_RESOURCES, 1, "one type, many times", {"resource_types": [2] * 150_000}),
    Row(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, "topics that there are not",
        {"topics": [{"name": f"no-{n}"} for n in range(80_000)]}, cpu_s_max=10, answer_bytes_max=4 * MIB,
        memory_bytes_max=64 * MIB),
    Row(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, "a wide topic, on many connections",
        {"topics": [{"name": "wide"}], "response_partition_limit": 2_000}, connections=100, before=WIDE, cpu_s_max=20,
        memory_bytes_max=128 * MIB, peak_bytes_max=128 * MIB),
    Row(ApiKey.DESCRIBE_QUORUM, 2, "partitions that there are not",
        {"topics": [{"topic_name": f"t{n}", "partitions": _partitions(1)} for n in range(20_000)]},
        answer_bytes_max=4 * MIB, memory_bytes_max=64 * MIB),
    Row(ApiKey.UPDATE_FEATURES, 1, "features that there are not",
        {"feature_updates": [{"feature": f"f{n}", "max_version_level": 1, "upgrade_type": 1} for n in range(5_000)]},
        answer_bytes_max=4 * MIB, memory_bytes_max=64 * MIB),
    Row(ApiKey.UNREGISTER_BROKER, 0, "a broker that there is not", {"broker_id": 50}, 100),
    Row(ApiKey.ADD_RAFT_VOTER, 0, "listeners without end",
        {"voter_id": 7, "voter_directory_id": UUID(int=1), "timeout_ms": 1000,
         "listeners": [{"name": f"n{n}", "host": "h", "port": 1} for n in range(20_000)]}, memory_bytes_max=64 * MIB),
    Row(ApiKey.REMOVE_RAFT_VOTER, 0, "a voter that there is not",
        {"voter_id": 50, "voter_directory_id": UUID(int=1)}, 100),
)  # fmt: skip
