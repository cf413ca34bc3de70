"""OffsetDelete (47), v0."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.offset_refusals import refusal_of


def handle(
    broker: Broker, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse | Promise[OffsetDeleteResponse]:
    if not context.permits(Operation.DELETE, Resource.GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    response = OffsetDeleteResponse(topics=[_answer(broker, context, topic) for topic in request.topics])
    return broker.groups.run(
        request.group_id,
        lambda shard, reply, _: shard.commits.delete(request.group_id, response, reply),
        lambda error: OffsetDeleteResponse(error_code=error),
    )


def _answer(broker: Broker, context: RequestContext, topic: OffsetDeleteRequestTopic) -> OffsetDeleteResponseTopic:
    refusal = refusal_of(broker, context, topic.name)
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponsePartition(
                partition_index=entry.partition_index, error_code=refusal(entry.partition_index)
            )
            for entry in topic.partitions
        ],
    )
