"""AlterPartitionReassignments (45): moves replicas to other brokers; null for the replicas cancels a move.

v1 can forbid a change of the replication factor.
"""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int16, int32, string


class ReassignablePartition(Message):
    partition_index: int = int32()
    replicas: list[int] | None = array(int32, nullable=True, default=None)


class ReassignableTopic(Message):
    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


class AlterPartitionReassignmentsRequest(Message, api=ApiKey.ALTER_PARTITION_REASSIGNMENTS):
    timeout_ms: int = int32(default=60000)
    allow_replication_factor_change: bool = boolean(since=1, default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


class ReassignablePartitionResponse(Message):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


class ReassignableTopicResponse(Message):
    name: str = string()
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


class AlterPartitionReassignmentsResponse(Message, api=ApiKey.ALTER_PARTITION_REASSIGNMENTS):
    throttle_time_ms: int = int32()
    allow_replication_factor_change: bool = boolean(since=1, default=True)
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)
