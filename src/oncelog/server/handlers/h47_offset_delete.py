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
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(
    broker: Broker, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse | Promise[OffsetDeleteResponse]:
    if not context.may(Operation.DELETE, Resource.GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    asked = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    refused = {
        entry: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for entry in asked
        if not context.may(Operation.READ, Resource.TOPIC, entry.topic)
    }
    refused |= {
        entry: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for entry in asked
        if entry not in refused and not broker.metadata.has_partition(*entry)
    }
    known = tuple(entry for entry in asked if entry not in refused)
    delete = DeleteRequest(group_id=request.group_id, partitions=known)
    answer = broker.groups.run(
        request.group_id,
        lambda shard, reply, now_ms: shard.delete_offsets(delete, reply),
        lambda error: OffsetDeleteResult(error=error),
    )
    return answer.map(lambda result: _respond(asked, refused, result))


def _respond(
    asked: list[TopicPartition], refused: dict[TopicPartition, ErrorCode], result: OffsetDeleteResult
) -> OffsetDeleteResponse:
    if result.error:
        return OffsetDeleteResponse(error_code=result.error)
    errors = {TopicPartition(entry.topic, entry.partition): entry.error for entry in result.partitions}
    topics: dict[str, OffsetDeleteResponseTopic] = {}
    for entry in asked:
        code = refused.get(entry) or errors.get(entry, ErrorCode.NONE)
        topic = topics.setdefault(entry.topic, OffsetDeleteResponseTopic(name=entry.topic))
        topic.partitions.append(OffsetDeleteResponsePartition(partition_index=entry.partition, error_code=code))
    return OffsetDeleteResponse(topics=list(topics.values()))
