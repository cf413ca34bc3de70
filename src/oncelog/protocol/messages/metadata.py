"""Metadata (3): brokers, topics, partition leaders.

Null topics mean all topics (in v0 an empty array does). v4 can forbid auto-creation, v7 brings leader epochs, v10 topic
ids, which v12 allows to ask by, v13 a top-level error.
"""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int16, int32, string, uuid


class MetadataRequestTopic(Message):
    topic_id: UUID = uuid(since=10)
    name: str | None = string(nullable_since=10)


class MetadataRequest(Message, api=ApiKey.METADATA):
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable_since=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


class MetadataResponseBroker(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(since=1, nullable=True, default=None)


class MetadataResponsePartition(Message):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(since=7, default=-1)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    offline_replicas: list[int] = array(int32, since=5)


class MetadataResponseTopic(Message):
    error_code: int = int16()
    name: str | None = string(nullable_since=12)
    topic_id: UUID = uuid(since=10)
    is_internal: bool = boolean(since=1)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(since=8, default=-(2**31))


class MetadataResponse(Message, api=ApiKey.METADATA):
    throttle_time_ms: int = int32(since=3)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(since=2, nullable=True, default=None)
    controller_id: int = int32(since=1, default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(since=8, until=10, default=-(2**31))
    error_code: int = int16(since=13)
