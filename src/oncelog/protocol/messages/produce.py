"""Produce (0): record batches for the log, at most one answer per partition.

Versions 0-2 are advertised because librdkafka expects them, and are refused. v8 names the records at fault, v10 tells
where a partition moved to, v12 adds partitions to the transaction by itself (KIP-890), v13 names topics by id.
"""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.primitives import Readable
from oncelog.protocol.schema import Message, array, int16, int32, int64, record_batches, string, struct, uuid


class PartitionProduceData(Message):
    index: int = int32()
    records: Readable | None = record_batches()


class TopicProduceData(Message):
    name: str = string(until=12)
    topic_id: UUID = uuid(since=13)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(Message, api=ApiKey.PRODUCE):
    transactional_id: str | None = string(nullable=True, default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(Message):
    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable=True, default=None)


class LeaderIdAndEpoch(Message):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class PartitionProduceResponse(Message):
    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, since=8)
    error_message: str | None = string(since=8, nullable=True, default=None)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, since=10, tag=0)


class TopicProduceResponse(Message):
    name: str = string(until=12)
    topic_id: UUID = uuid(since=13)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


class NodeEndpoint(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable=True, default=None)


class ProduceResponse(Message, api=ApiKey.PRODUCE):
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32()
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tag=0)
