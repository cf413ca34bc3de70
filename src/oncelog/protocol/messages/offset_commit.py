"""OffsetCommit (8): the positions of a consumer group.

v6 brings leader epochs, v7 static membership, v9 the member epochs of KIP-848, v10 names topics by id.
"""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, int32, int64, string, uuid


class OffsetCommitRequestPartition(Message):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=6, default=-1)
    committed_metadata: str | None = string(nullable=True)


class OffsetCommitRequestTopic(Message):
    name: str = string(until=9)
    topic_id: UUID = uuid(since=10)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Message, api=ApiKey.OFFSET_COMMIT):
    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=7, nullable=True, default=None)
    retention_time_ms: int = int64(until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Message):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetCommitResponseTopic(Message):
    name: str = string(until=9)
    topic_id: UUID = uuid(since=10)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Message, api=ApiKey.OFFSET_COMMIT):
    throttle_time_ms: int = int32(since=3)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)
