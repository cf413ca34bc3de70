"""OffsetDelete (47): forget committed offsets of a group."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, int32, string


class OffsetDeleteRequestPartition(Message):
    partition_index: int = int32()


class OffsetDeleteRequestTopic(Message):
    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


class OffsetDeleteRequest(Message, api=ApiKey.OFFSET_DELETE):
    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


class OffsetDeleteResponsePartition(Message):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetDeleteResponseTopic(Message):
    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


class OffsetDeleteResponse(Message, api=ApiKey.OFFSET_DELETE):
    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)
