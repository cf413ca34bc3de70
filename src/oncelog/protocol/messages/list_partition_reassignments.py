"""ListPartitionReassignments (46): partitions whose replicas are being moved; null for the topics means all."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, int32, string


class ListPartitionReassignmentsTopics(Message):
    name: str = string()
    partition_indexes: list[int] = array(int32)


class ListPartitionReassignmentsRequest(Message, api=ApiKey.LIST_PARTITION_REASSIGNMENTS):
    timeout_ms: int = int32(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, nullable=True, default=None
    )


class OngoingPartitionReassignment(Message):
    partition_index: int = int32()
    replicas: list[int] = array(int32)
    adding_replicas: list[int] = array(int32)
    removing_replicas: list[int] = array(int32)


class OngoingTopicReassignment(Message):
    name: str = string()
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


class ListPartitionReassignmentsResponse(Message, api=ApiKey.LIST_PARTITION_REASSIGNMENTS):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)
