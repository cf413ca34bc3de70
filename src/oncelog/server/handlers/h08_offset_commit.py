"""OffsetCommit (8), v2-10: topics by name, from v10 on by id."""

from __future__ import annotations

from uuid import UUID

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.offset_parts import in_parts, is_small
from oncelog.server.offset_refusals import Refusal, refusal_of, refuse_all
from oncelog.server.turns import Steps, in_steps

_TOPIC_ID_VERSION = 10

Answer = Steps[OffsetCommitResponse | Promise[OffsetCommitResponse]]


def handle(broker: Broker, request: OffsetCommitRequest, context: RequestContext) -> Answer:
    refused = _refusal_of_group(broker, request.group_id, context)
    response = OffsetCommitResponse()
    topic_ids: dict[str, UUID] = {}
    for topic in request.topics:
        if response.topics:
            yield
        response.topics.append((yield from _answer(topic, refused or _refusal(broker, context, topic))))
        known = broker.metadata.topics.get(topic.name)
        if known is not None:
            topic_ids[topic.name] = known.topic_id
    if refused is not None:
        return response
    groups, version = broker.groups, context.api_version

    def commit(part: OffsetCommitRequest, answer: OffsetCommitResponse) -> Promise[OffsetCommitResponse]:
        return groups.commit(
            part,
            answer,
            lambda shard, reply, now_ms: shard.commits.commit(part, answer, reply, now_ms, topic_ids, version),
        )

    if is_small(request):
        return commit(request, response)
    steps = in_parts(request, response, commit)
    # A promise of HANG_UP is the dispatcher's to deal with.
    return groups.shards.available().chain(lambda _: broker.turns.begin(steps, context.peer))


def _refusal_of_group(broker: Broker, group_id: str, context: RequestContext) -> Refusal | None:
    if not context.permits(Operation.READ, Resource.GROUP, group_id):
        return refuse_all(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        broker.groups.check_room(group_id)
    except KafkaError as error:
        broker.log_refusal("OffsetCommit", error.code, error.message)
        return refuse_all(error.code)
    return None


def _refusal(broker: Broker, context: RequestContext, topic: OffsetCommitRequestTopic) -> Refusal:
    """What is refused of a topic. It is given its name, if the request has its id instead."""
    if context.api_version >= _TOPIC_ID_VERSION:
        known = broker.metadata.topics_by_id.get(topic.topic_id)
        if known is None:
            return refuse_all(ErrorCode.UNKNOWN_TOPIC_ID)
        topic.name = known.name
    return refusal_of(broker, context, topic.name)


def _answer(topic: OffsetCommitRequestTopic, refusal: Refusal) -> Steps[OffsetCommitResponseTopic]:
    indexes = (entry.partition_index for entry in topic.partitions)
    answers = (OffsetCommitResponsePartition(partition_index=index, error_code=refusal(index)) for index in indexes)
    partitions = yield from in_steps(answers)
    return OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
