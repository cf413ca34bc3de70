"""OffsetDelete (47), v0."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise, gather
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import HangUp, RequestContext
from oncelog.server.offset_parts import parts_of_response
from oncelog.server.offset_refusals import refusal_of
from oncelog.server.turns import Steps, in_steps, one_by_one


def handle(
    broker: Broker, request: OffsetDeleteRequest, context: RequestContext
) -> Steps[OffsetDeleteResponse | Promise[OffsetDeleteResponse | HangUp]]:
    if not context.permits(Operation.DELETE, Resource.GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    response = OffsetDeleteResponse()
    for topic in request.topics:
        response.topics.append((yield from _answer(broker, context, topic)))
        yield
    steps = _delete(broker, request.group_id, response)
    deleted: Promise[OffsetDeleteResponse] = broker.groups.shards.available().chain(
        lambda _: broker.turns.begin(steps, context.peer, to_the_end=True)
    )

    def tell(answer: OffsetDeleteResponse | HangUp) -> OffsetDeleteResponse | HangUp:
        if isinstance(answer, HangUp):
            return answer
        names = [topic.name for topic in answer.topics if any(not each.error_code for each in topic.partitions)]
        if names and not answer.error_code:
            context.tell_change("GROUP", request.group_id, f"offsets deleted of {', '.join(names)}")
        return answer

    return deleted.map(tell)


def _delete(broker: Broker, group_id: str, response: OffsetDeleteResponse) -> Steps[Promise[OffsetDeleteResponse]]:
    def delete(part: OffsetDeleteResponse) -> Promise[OffsetDeleteResponse]:
        return broker.groups.run(
            group_id,
            lambda shard, reply, _: shard.commits.delete(group_id, part, reply),
            lambda error: OffsetDeleteResponse(error_code=error),
        )

    deleted = yield from one_by_one(delete, parts_of_response(response))

    def joined(parts: list[OffsetDeleteResponse]) -> OffsetDeleteResponse:
        """If the group has an error in one of the parts, that is the error of the whole answer."""
        error = next((part.error_code for part in parts if part.error_code), ErrorCode.NONE)
        return OffsetDeleteResponse(error_code=error) if error else response

    return gather(deleted).map(joined)


def _answer(
    broker: Broker, context: RequestContext, topic: OffsetDeleteRequestTopic
) -> Steps[OffsetDeleteResponseTopic]:
    refusal = refusal_of(broker, context, topic.name)
    indexes = dict.fromkeys((yield from in_steps(entry.partition_index for entry in topic.partitions)))
    partitions = yield from one_by_one(
        lambda index: OffsetDeleteResponsePartition(partition_index=index, error_code=refusal(index)), indexes
    )
    return OffsetDeleteResponseTopic(name=topic.name, partitions=partitions)
