"""OffsetFetch (9): the committed positions of consumer groups.

Null topics mean all. v7 can demand stable offsets (no transaction pending), v8 asks for several groups at once, v9
brings member epochs (KIP-848), v10 names topics by id.
"""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int16, int32, int64, string, uuid


class OffsetFetchRequestTopic(Message):
    name: str = string()
    partition_indexes: list[int] = array(int32)


class OffsetFetchRequestTopics(Message):
    name: str = string(until=9)
    topic_id: UUID = uuid(since=10)
    partition_indexes: list[int] = array(int32)


class OffsetFetchRequestGroup(Message):
    group_id: str = string()
    member_id: str | None = string(since=9, nullable=True, default=None)
    member_epoch: int = int32(since=9, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, nullable=True)


class OffsetFetchRequest(Message, api=ApiKey.OFFSET_FETCH):
    group_id: str = string(until=7)
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, until=7, nullable_since=2)
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, since=8)
    require_stable: bool = boolean(since=7)


class OffsetFetchResponsePartition(Message):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=5, default=-1)
    metadata: str | None = string(nullable=True)
    error_code: int = int16()


class OffsetFetchResponseTopic(Message):
    name: str = string()
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


class OffsetFetchResponsePartitions(Message):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1)
    metadata: str | None = string(nullable=True)
    error_code: int = int16()


class OffsetFetchResponseTopics(Message):
    name: str = string(until=9)
    topic_id: UUID = uuid(since=10)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions)


class OffsetFetchResponseGroup(Message):
    group_id: str = string()
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics)
    error_code: int = int16()


class OffsetFetchResponse(Message, api=ApiKey.OFFSET_FETCH):
    throttle_time_ms: int = int32(since=3)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7)
    error_code: int = int16(since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8)
