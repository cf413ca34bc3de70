"""CreatePartitions (37): let topics grow; `count` is the new total."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int16, int32, string


class CreatePartitionsAssignment(Message):
    broker_ids: list[int] = array(int32)


class CreatePartitionsTopic(Message):
    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable=True)


class CreatePartitionsRequest(Message, api=ApiKey.CREATE_PARTITIONS):
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


class CreatePartitionsTopicResult(Message):
    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)


class CreatePartitionsResponse(Message, api=ApiKey.CREATE_PARTITIONS):
    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)
