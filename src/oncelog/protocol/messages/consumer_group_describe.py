"""ConsumerGroupDescribe (69, KIP-848): state, members and assignments of new-style groups."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, string, struct, uuid


class ConsumerGroupDescribeRequest(Message, api=ApiKey.CONSUMER_GROUP_DESCRIBE):
    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()


class TopicPartitions(Message):
    topic_id: UUID = uuid()
    topic_name: str = string()
    partitions: list[int] = array(int32)


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class Member(Message):
    member_id: str = string()
    instance_id: str | None = string(nullable=True, default=None)
    rack_id: str | None = string(nullable=True, default=None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable=True, default=None)
    assignment: Assignment = struct(Assignment)
    target_assignment: Assignment = struct(Assignment)
    member_type: int = int8(since=1, default=-1)


class DescribedGroup(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[Member] = array(Member)
    authorized_operations: int = int32(default=-(2**31))


class ConsumerGroupDescribeResponse(Message, api=ApiKey.CONSUMER_GROUP_DESCRIBE):
    throttle_time_ms: int = int32()
    groups: list[DescribedGroup] = array(DescribedGroup)
