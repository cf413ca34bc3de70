"""FetchSnapshot (59): a piece of a snapshot of the metadata log, from a controller.

v1 adds the directory of whoever asks, and the addresses of the leader.
"""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.primitives import Readable
from oncelog.protocol.schema import Message, array, int16, int32, int64, record_batches, string, struct, uint16, uuid


class SnapshotId(Message):
    end_offset: int = int64()
    epoch: int = int32()


class PartitionSnapshotRequest(Message):
    partition: int = int32()
    current_leader_epoch: int = int32()
    snapshot_id: SnapshotId = struct(SnapshotId)
    position: int = int64()
    replica_directory_id: UUID = uuid(since=1, tag=0)


class TopicSnapshotRequest(Message):
    name: str = string()
    partitions: list[PartitionSnapshotRequest] = array(PartitionSnapshotRequest)


class FetchSnapshotRequest(Message, api=ApiKey.FETCH_SNAPSHOT):
    cluster_id: str | None = string(nullable=True, default=None, tag=0)
    replica_id: int = int32(default=-1)
    max_bytes: int = int32(default=2**31 - 1)
    topics: list[TopicSnapshotRequest] = array(TopicSnapshotRequest)


class LeaderIdAndEpoch(Message):
    leader_id: int = int32()
    leader_epoch: int = int32()


class PartitionSnapshot(Message):
    index: int = int32()
    error_code: int = int16()
    snapshot_id: SnapshotId = struct(SnapshotId)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, tag=0)
    size: int = int64()
    position: int = int64()
    unaligned_records: Readable = record_batches(nullable=False)


class TopicSnapshot(Message):
    name: str = string()
    partitions: list[PartitionSnapshot] = array(PartitionSnapshot)


class NodeEndpoint(Message):
    node_id: int = int32()
    host: str = string()
    port: int = uint16()


class FetchSnapshotResponse(Message, api=ApiKey.FETCH_SNAPSHOT):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: list[TopicSnapshot] = array(TopicSnapshot)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=1, tag=0)
