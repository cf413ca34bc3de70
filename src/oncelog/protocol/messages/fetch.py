"""Fetch (1): record batches from the log, for consumers and for followers.

v4 brings the isolation level and the aborted transactions, v7 fetch sessions, v9 fencing by leader epoch, v11 racks,
v12 divergence detection, v13 topic ids, v15 moves the replica id into a tagged field, v16 tells where a partition
moved to, v17 and v18 serve KRaft.
"""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.primitives import Readable
from oncelog.protocol.schema import Message, array, int8, int16, int32, int64, record_batches, string, struct, uuid


class ReplicaState(Message):
    replica_id: int = int32(default=-1)
    replica_epoch: int = int64(default=-1)


class FetchPartition(Message):
    partition: int = int32()
    current_leader_epoch: int = int32(since=9, default=-1)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(since=12, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    partition_max_bytes: int = int32()
    replica_directory_id: UUID = uuid(since=17, tag=0)
    high_watermark: int = int64(since=18, default=2**63 - 1, tag=1)


class FetchTopic(Message):
    topic: str = string(until=12)
    topic_id: UUID = uuid(since=13)
    partitions: list[FetchPartition] = array(FetchPartition)


class ForgottenTopic(Message):
    topic: str = string(until=12)
    topic_id: UUID = uuid(since=13)
    partitions: list[int] = array(int32)


class FetchRequest(Message, api=ApiKey.FETCH):
    cluster_id: str | None = string(since=12, nullable=True, default=None, tag=0)
    replica_id: int = int32(until=14, default=-1)
    replica_state: ReplicaState = struct(ReplicaState, since=15, tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=2**31 - 1)
    isolation_level: int = int8()
    session_id: int = int32(since=7)
    session_epoch: int = int32(since=7, default=-1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, since=7)
    rack_id: str = string(since=11)


class EpochEndOffset(Message):
    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


class LeaderIdAndEpoch(Message):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class SnapshotId(Message):
    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


class AbortedTransaction(Message):
    producer_id: int = int64()
    first_offset: int = int64()


class PartitionData(Message):
    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    diverging_epoch: EpochEndOffset = struct(EpochEndOffset, since=12, tag=0)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, since=12, tag=1)
    snapshot_id: SnapshotId = struct(SnapshotId, since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, nullable=True)
    preferred_read_replica: int = int32(since=11, default=-1)
    records: Readable | None = record_batches()


class FetchableTopicResponse(Message):
    topic: str = string(until=12)
    topic_id: UUID = uuid(since=13)
    partitions: list[PartitionData] = array(PartitionData)


class NodeEndpoint(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable=True, default=None)


class FetchResponse(Message, api=ApiKey.FETCH):
    throttle_time_ms: int = int32()
    error_code: int = int16(since=7)
    session_id: int = int32(since=7)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=16, tag=0)
