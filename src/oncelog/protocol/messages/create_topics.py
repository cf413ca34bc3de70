"""CreateTopics (19). v4 lets the broker choose counts (-1), v5 answers with the configuration, v7 with the topic id."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, string, uuid


class CreatableReplicaAssignment(Message):
    partition_index: int = int32()
    broker_ids: list[int] = array(int32)


class CreatableTopicConfig(Message):
    name: str = string()
    value: str | None = string(nullable=True)


class CreatableTopic(Message):
    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


class CreateTopicsRequest(Message, api=ApiKey.CREATE_TOPICS):
    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean()


class CreatableTopicConfigs(Message):
    name: str = string()
    value: str | None = string(nullable=True)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()


class CreatableTopicResult(Message):
    name: str = string()
    topic_id: UUID = uuid(since=7)
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    topic_config_error_code: int = int16(since=5, tag=0)
    num_partitions: int = int32(since=5, default=-1)
    replication_factor: int = int16(since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, since=5, nullable=True)


class CreateTopicsResponse(Message, api=ApiKey.CREATE_TOPICS):
    throttle_time_ms: int = int32()
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)
