"""The table: requests that cost more than they look like, and how much they may.

Bounds are on the whole row, and wide: they tell what is bounded from what grows with what a client sends. `WITHOUT_ROW`
names the APIs that no row attacks yet; one that is in neither fails the test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from oncelog.core.errors import ErrorCode
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages import incremental_alter_configs as incremental
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTransaction
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

MIB: Final = 1 << 20
SETTINGS: Final = {
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "oncelog.partitions.max": 2_000,
    "oncelog.transactional.ids.max": 500,
    "group.initial.rebalance.delay.ms": 0,
}


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    version: int
    request: Callable[[int], Any]
    """The request with this number."""
    count: int
    """How often it is sent, on one connection."""
    cpu_s_max: float
    memory_bytes_max: int
    answer_bytes_max: int = 10_000
    log_bytes_max: int = 400_000
    codes: frozenset[int] = field(default_factory=frozenset)
    """Error codes that the answers must have between them, if that is part of the bound."""

    @property
    def api(self) -> ApiKey:
        return ApiKey(type(self.request(0)).API_KEY)


def _long_id(number: int) -> str:
    return f"{number:08d}" * 4_000


def _join(number: int, group: str, metadata: bytes) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=300_000,
        rebalance_timeout_ms=300_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


def _create(*topics: tuple[str, int]) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in topics]
    )


def _markers(number: int) -> WriteTxnMarkersRequest:
    topics = [WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
    return WriteTxnMarkersRequest(
        markers=[WritableTxnMarker(producer_id=number, producer_epoch=0, transaction_result=True, topics=topics)]
    )


def _set_connections(number: int) -> incremental.IncrementalAlterConfigsRequest:
    setting = incremental.AlterableConfig(name="max.connections", config_operation=0, value=str(number % 10))
    resource = incremental.AlterConfigsResource(resource_type=4, resource_name="1", configs=[setting])
    return incremental.IncrementalAlterConfigsRequest(resources=[resource])


ROWS: Final = (
    Row(
        "members that never come back with their id",
        5,
        lambda number: _join(number, "waiting", b""),
        3_000,
        cpu_s_max=10,
        memory_bytes_max=16 * MIB,
        codes=frozenset({ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED}),
    ),
    Row(
        "members that never come back, with much to tell",
        5,
        lambda number: _join(number, "talkative", bytes(900_000)),
        200,
        cpu_s_max=10,
        memory_bytes_max=80 * MIB,
        codes=frozenset({ErrorCode.MEMBER_ID_REQUIRED}),
    ),
    Row(
        "a group with more to tell than there is room for",
        5,
        lambda number: _join(number, "large", bytes(20 * MIB)),
        10,
        cpu_s_max=10,
        memory_bytes_max=80 * MIB,
        codes=frozenset({ErrorCode.GROUP_MAX_SIZE_REACHED}),
    ),
    Row(
        "ids of groups that are long and new each time",
        4,
        lambda number: FindCoordinatorRequest(key_type=0, coordinator_keys=[_long_id(number)]),
        800,
        cpu_s_max=30,
        memory_bytes_max=16 * MIB,
        answer_bytes_max=40_000,
    ),
    Row(
        "transactional ids without end",
        4,
        lambda number: InitProducerIdRequest(
            transactional_id=f"id-{number}", transaction_timeout_ms=1_000, producer_id=-1, producer_epoch=-1
        ),
        2_000,
        cpu_s_max=20,
        memory_bytes_max=32 * MIB,
        codes=frozenset({ErrorCode.NONE, ErrorCode.POLICY_VIOLATION}),
    ),
    Row(
        "refusals that would name a long id in the log",
        4,
        lambda number: InitProducerIdRequest(
            transactional_id=_long_id(number), transaction_timeout_ms=-1, producer_id=-1, producer_epoch=-1
        ),
        1_500,
        cpu_s_max=60,
        memory_bytes_max=32 * MIB,
    ),
    Row(
        "partitions without end",
        7,
        lambda number: _create((f"many-{number}", 100)),
        100,
        cpu_s_max=30,
        memory_bytes_max=64 * MIB,
        answer_bytes_max=20_000,
        codes=frozenset({ErrorCode.NONE, ErrorCode.POLICY_VIOLATION}),
    ),
    Row(
        "partitions without end, of one topic",
        3,
        lambda number: CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="many-0", count=9_000 + number, assignments=None)]
        ),
        100,
        cpu_s_max=10,
        memory_bytes_max=16 * MIB,
        codes=frozenset({ErrorCode.POLICY_VIOLATION}),
    ),
    Row(
        "topics that are asked for to be made",
        12,
        lambda number: MetadataRequest(
            topics=[MetadataRequestTopic(name=f"auto-{number}-{n}") for n in range(50)], allow_auto_topic_creation=True
        ),
        40,
        cpu_s_max=30,
        memory_bytes_max=64 * MIB,
        codes=frozenset({ErrorCode.POLICY_VIOLATION}),
    ),
    Row(
        "markers of a stranger",
        1,
        _markers,
        2_000,
        cpu_s_max=10,
        memory_bytes_max=16 * MIB,
        codes=frozenset({ErrorCode.CLUSTER_AUTHORIZATION_FAILED}),
    ),
    Row(
        "partitions of a stranger",
        5,
        lambda number: AddPartitionsToTxnRequest(
            transactions=[AddPartitionsToTxnTransaction(transactional_id=f"id-{n}") for n in range(1_000)]
        ),
        50,
        cpu_s_max=10,
        memory_bytes_max=16 * MIB,
    ),
    Row(
        "connections that are to be forbidden",
        1,
        _set_connections,
        200,
        cpu_s_max=10,
        memory_bytes_max=16 * MIB,
        codes=frozenset({ErrorCode.INVALID_CONFIG}),
    ),
    Row(
        "heartbeats of members that nobody knows",
        3,
        lambda number: HeartbeatRequest(group_id=_long_id(number), generation_id=1, member_id=_long_id(number)),
        300,
        cpu_s_max=20,
        memory_bytes_max=16 * MIB,
    ),
)  # fmt: skip

WITHOUT_ROW: Final = frozenset({
    ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP, ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.API_VERSIONS, ApiKey.DELETE_TOPICS,
    ApiKey.DELETE_RECORDS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT, ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE,
    ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.DESCRIBE_LOG_DIRS,
})  # fmt: skip
