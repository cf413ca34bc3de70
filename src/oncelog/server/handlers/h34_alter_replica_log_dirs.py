"""AlterReplicaLogDirs (34), v1-2: a broker has one data folder, so a partition is there already, or cannot go there."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import ITEM_BYTES, Steps


def handle(
    broker: Broker, request: AlterReplicaLogDirsRequest, context: RequestContext
) -> Steps[AlterReplicaLogDirsResponse]:
    is_allowed = context.permits(Operation.ALTER, Resource.CLUSTER)
    here = str(broker.log_dir.path.absolute())
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for folder in request.dirs:
        for topic in folder.topics:
            result = results.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name))
            for index in topic.partitions:
                code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                if is_allowed:
                    code = _outcome(broker, TopicPartition(topic.name, index), folder.path == here)
                result.partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
                yield ITEM_BYTES
            yield
    return AlterReplicaLogDirsResponse(results=list(results.values()))


def _outcome(broker: Broker, partition: TopicPartition, is_here: bool) -> ErrorCode:
    if not is_here:
        return ErrorCode.LOG_DIR_NOT_FOUND
    topic = broker.metadata.topics.get(partition.topic)
    if topic is None or not 0 <= partition.partition < topic.partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if broker.is_in_cluster and partition not in broker.log_dir.logs:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    return ErrorCode.NONE
