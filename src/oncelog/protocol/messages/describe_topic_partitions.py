"""DescribeTopicPartitions (75): topics page by page, with a cursor.

Java clients demand empty, not null, arrays for the eligible leader replicas.
"""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int16, int32, string, struct, uuid


class TopicRequest(Message):
    name: str = string()


class Cursor(Message):
    topic_name: str = string()
    partition_index: int = int32()


class DescribeTopicPartitionsRequest(Message, api=ApiKey.DESCRIBE_TOPIC_PARTITIONS):
    topics: list[TopicRequest] = array(TopicRequest)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = struct(Cursor, nullable=True)


class DescribeTopicPartitionsResponsePartition(Message):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    eligible_leader_replicas: list[int] | None = array(int32, nullable=True, default=None)
    last_known_elr: list[int] | None = array(int32, nullable=True, default=None)
    offline_replicas: list[int] = array(int32)


class DescribeTopicPartitionsResponseTopic(Message):
    error_code: int = int16()
    name: str | None = string(nullable=True)
    topic_id: UUID = uuid()
    is_internal: bool = boolean()
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(DescribeTopicPartitionsResponsePartition)
    topic_authorized_operations: int = int32(default=-(2**31))


class DescribeTopicPartitionsResponse(Message, api=ApiKey.DESCRIBE_TOPIC_PARTITIONS):
    throttle_time_ms: int = int32()
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = struct(Cursor, nullable=True)
