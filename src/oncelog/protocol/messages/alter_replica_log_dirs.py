"""AlterReplicaLogDirs (34): move replicas to other data folders of their broker."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, int32, string


class AlterReplicaLogDirTopic(Message):
    name: str = string()
    partitions: list[int] = array(int32)


class AlterReplicaLogDir(Message):
    path: str = string()
    topics: list[AlterReplicaLogDirTopic] = array(AlterReplicaLogDirTopic)


class AlterReplicaLogDirsRequest(Message, api=ApiKey.ALTER_REPLICA_LOG_DIRS):
    dirs: list[AlterReplicaLogDir] = array(AlterReplicaLogDir)


class AlterReplicaLogDirPartitionResult(Message):
    partition_index: int = int32()
    error_code: int = int16()


class AlterReplicaLogDirTopicResult(Message):
    topic_name: str = string()
    partitions: list[AlterReplicaLogDirPartitionResult] = array(AlterReplicaLogDirPartitionResult)


class AlterReplicaLogDirsResponse(Message, api=ApiKey.ALTER_REPLICA_LOG_DIRS):
    throttle_time_ms: int = int32()
    results: list[AlterReplicaLogDirTopicResult] = array(AlterReplicaLogDirTopicResult)
