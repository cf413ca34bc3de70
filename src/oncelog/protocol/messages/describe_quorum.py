"""DescribeQuorum (55): the state of a KRaft quorum, which tools ask for even when there is none."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, int32, int64, string, uint16, uuid


class RequestPartitionData(Message):
    partition_index: int = int32()


class RequestTopicData(Message):
    topic_name: str = string()
    partitions: list[RequestPartitionData] = array(RequestPartitionData)


class DescribeQuorumRequest(Message, api=ApiKey.DESCRIBE_QUORUM):
    topics: list[RequestTopicData] = array(RequestTopicData)


class ReplicaState(Message):
    replica_id: int = int32()
    replica_directory_id: UUID = uuid(since=2)
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64(since=1, default=-1)
    last_caught_up_timestamp: int = int64(since=1, default=-1)


class PartitionData(Message):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(since=2, nullable=True)
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[ReplicaState] = array(ReplicaState)
    observers: list[ReplicaState] = array(ReplicaState)


class TopicData(Message):
    topic_name: str = string()
    partitions: list[PartitionData] = array(PartitionData)


class Listener(Message):
    name: str = string()
    host: str = string()
    port: int = uint16()


class Node(Message):
    node_id: int = int32()
    listeners: list[Listener] = array(Listener)


class DescribeQuorumResponse(Message, api=ApiKey.DESCRIBE_QUORUM):
    error_code: int = int16()
    error_message: str | None = string(since=2, nullable=True)
    topics: list[TopicData] = array(TopicData)
    nodes: list[Node] = array(Node, since=2)
