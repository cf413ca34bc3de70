"""OffsetDelete (47), v0."""

from __future__ import annotations

from oncelog.coordinator.group.requests import OffsetDeleteRequest as DeleteRequest
from oncelog.coordinator.group.requests import OffsetDeleteResult
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.core.promise import Promise
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(broker: Broker, request: OffsetDeleteRequest, context: RequestContext) -> Promise[OffsetDeleteResponse]:
    asked = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    known = tuple(entry for entry in asked if broker.metadata.has_partition(*entry))
    delete = DeleteRequest(group_id=request.group_id, partitions=known)
    answer = broker.groups.run(
        request.group_id,
        lambda shard, reply, now_ms: shard.delete_offsets(delete, reply),
        lambda error: OffsetDeleteResult(error=error),
    )
    return answer.map(lambda result: _respond(asked, set(known), result))


def _respond(
    asked: list[TopicPartition], known: set[TopicPartition], result: OffsetDeleteResult
) -> OffsetDeleteResponse:
    if result.error:
        return OffsetDeleteResponse(error_code=result.error)
    errors = {TopicPartition(entry.topic, entry.partition): entry.error for entry in result.partitions}
    topics: dict[str, OffsetDeleteResponseTopic] = {}
    for entry in asked:
        code = errors.get(entry, ErrorCode.NONE) if entry in known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic = topics.setdefault(entry.topic, OffsetDeleteResponseTopic(name=entry.topic))
        topic.partitions.append(OffsetDeleteResponsePartition(partition_index=entry.partition, error_code=code))
    return OffsetDeleteResponse(topics=list(topics.values()))
