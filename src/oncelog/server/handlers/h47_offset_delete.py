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
from oncelog.server.turns import Steps, one_by_one


def handle(
    broker: Broker, request: OffsetDeleteRequest, context: RequestContext
) -> Steps[OffsetDeleteResponse | Promise[OffsetDeleteResponse]]:
    if not context.permits(Operation.DELETE, Resource.GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    response = OffsetDeleteResponse()
    for topic in request.topics:
        response.topics.append((yield from _answer(broker, context, topic)))
        yield
    return broker.groups.run(
        request.group_id,
        lambda shard, reply, _: shard.commits.delete(request.group_id, response, reply),
        lambda error: OffsetDeleteResponse(error_code=error),
    )


def _answer(
    broker: Broker, context: RequestContext, topic: OffsetDeleteRequestTopic
) -> Steps[OffsetDeleteResponseTopic]:
    refusal = refusal_of(broker, context, topic.name)
    indexes = dict.fromkeys(entry.partition_index for entry in topic.partitions)
    partitions = yield from one_by_one(
        lambda index: OffsetDeleteResponsePartition(partition_index=index, error_code=refusal(index)), indexes
    )
    return OffsetDeleteResponseTopic(name=topic.name, partitions=partitions)
