"""ConsumerGroupHeartbeat (68, KIP-848): join, stay, leave and be assigned partitions, all in one.

Null fields mean unchanged since the last heartbeat. v1 adds subscription by regular expression.
"""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, int32, string, struct, uuid


class TopicPartitions(Message):
    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


class ConsumerGroupHeartbeatRequest(Message, api=ApiKey.CONSUMER_GROUP_HEARTBEAT):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable=True, default=None)
    rack_id: str | None = string(nullable=True, default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string, nullable=True, default=None)
    subscribed_topic_regex: str | None = string(since=1, nullable=True, default=None)
    server_assignor: str | None = string(nullable=True, default=None)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable=True, default=None)


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupHeartbeatResponse(Message, api=ApiKey.CONSUMER_GROUP_HEARTBEAT):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    member_id: str | None = string(nullable=True, default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = struct(Assignment, nullable=True)
