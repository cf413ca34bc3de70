"""DescribeProducers (61): the producers a partition remembers, with their open transactions."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, int32, int64, string


class TopicRequest(Message):
    name: str = string()
    partition_indexes: list[int] = array(int32)


class DescribeProducersRequest(Message, api=ApiKey.DESCRIBE_PRODUCERS):
    topics: list[TopicRequest] = array(TopicRequest)


class ProducerState(Message):
    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)


class PartitionResponse(Message):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    active_producers: list[ProducerState] = array(ProducerState)


class TopicResponse(Message):
    name: str = string()
    partitions: list[PartitionResponse] = array(PartitionResponse)


class DescribeProducersResponse(Message, api=ApiKey.DESCRIBE_PRODUCERS):
    throttle_time_ms: int = int32()
    topics: list[TopicResponse] = array(TopicResponse)
