"""AssignReplicasToDirs (73): a broker with several log directories tells the controller where its replicas are."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, int32, int64, uuid


class AssignedPartition(Message):
    partition_index: int = int32()


class AssignedTopic(Message):
    topic_id: UUID = uuid()
    partitions: list[AssignedPartition] = array(AssignedPartition)


class AssignedDirectory(Message):
    id_: UUID = uuid()
    topics: list[AssignedTopic] = array(AssignedTopic)


class AssignReplicasToDirsRequest(Message, api=ApiKey.ASSIGN_REPLICAS_TO_DIRS):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    directories: list[AssignedDirectory] = array(AssignedDirectory)


class PartitionResult(Message):
    partition_index: int = int32()
    error_code: int = int16()


class TopicResult(Message):
    topic_id: UUID = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


class DirectoryResult(Message):
    id_: UUID = uuid()
    topics: list[TopicResult] = array(TopicResult)


class AssignReplicasToDirsResponse(Message, api=ApiKey.ASSIGN_REPLICAS_TO_DIRS):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    directories: list[DirectoryResult] = array(DirectoryResult)
