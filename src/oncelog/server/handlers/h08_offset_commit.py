"""OffsetCommit (8), v2-10: topics by name, from v10 on by id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from oncelog.coordinator.group.responses import offsets_refused
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise, gather
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
from oncelog.server.offset_parts import ANSWERS_PER_STEP, parts_of
from oncelog.server.offset_refusals import Refusal, refusal_of, refuse_all
from oncelog.server.turns import ITEM_BYTES, Steps

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
    parts = parts_of(request, response)
    if parts is None:
        return _commit(broker, request, response, topic_ids, context.api_version)
    steps = _commit_parts(broker, parts, response, topic_ids, context.api_version)
    # A promise of HANG_UP is the dispatcher's to deal with.
    return broker.groups.shards.available().chain(lambda _: broker.turns.begin(steps, context.peer))


def _commit_parts(
    broker: Broker,
    parts: Iterable[tuple[OffsetCommitRequest, OffsetCommitResponse]],
    response: OffsetCommitResponse,
    topic_ids: Mapping[str, UUID],
    version: int,
) -> Steps[Promise[OffsetCommitResponse]]:
    committed: list[Promise[OffsetCommitResponse]] = []
    for part, answer in parts:
        committed.append(_commit(broker, part, answer, topic_ids, version))
        yield
    return gather(committed).map(lambda _: response)


def _refusal_of_group(broker: Broker, group_id: str, context: RequestContext) -> Refusal | None:
    if not context.permits(Operation.READ, Resource.GROUP, group_id):
        return refuse_all(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        broker.groups.check_room(group_id)
    except KafkaError as error:
        broker.log_refusal("OffsetCommit", error.code, error.message)
        return refuse_all(error.code)
    return None


def _commit(
    broker: Broker,
    request: OffsetCommitRequest,
    response: OffsetCommitResponse,
    topic_ids: Mapping[str, UUID],
    version: int,
) -> Promise[OffsetCommitResponse]:
    broker.groups.refuse_offsets(request, response)
    return broker.groups.run(
        request.group_id,
        lambda shard, reply, now_ms: shard.commits.commit(request, response, reply, now_ms, topic_ids, version),
        lambda error: offsets_refused(response, error),
    )


def _refusal(broker: Broker, context: RequestContext, topic: OffsetCommitRequestTopic) -> Refusal:
    """What is refused of a topic. It is given its name, if the request has its id instead."""
    if context.api_version >= _TOPIC_ID_VERSION:
        known = broker.metadata.topics_by_id.get(topic.topic_id)
        if known is None:
            return refuse_all(ErrorCode.UNKNOWN_TOPIC_ID)
        topic.name = known.name
    return refusal_of(broker, context, topic.name)


def _answer(topic: OffsetCommitRequestTopic, refusal: Refusal) -> Steps[OffsetCommitResponseTopic]:
    answered = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
    for number, entry in enumerate(topic.partitions, start=1):
        index = entry.partition_index
        answered.partitions.append(OffsetCommitResponsePartition(partition_index=index, error_code=refusal(index)))
        if number % ANSWERS_PER_STEP == 0:
            yield ANSWERS_PER_STEP * ITEM_BYTES
    return answered
