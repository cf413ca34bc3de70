"""OffsetCommit (8), v2-10: topics by name, from v10 on by id."""

from __future__ import annotations

from collections.abc import Mapping
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
from oncelog.server.offset_parts import parts_of
from oncelog.server.offset_refusals import Refusal, refusal_of, refuse_all
from oncelog.server.turns import Steps

_TOPIC_ID_VERSION = 10

Answer = Steps[OffsetCommitResponse | Promise[OffsetCommitResponse]]


def handle(broker: Broker, request: OffsetCommitRequest, context: RequestContext) -> Answer:
    if not context.permits(Operation.READ, Resource.GROUP, request.group_id):
        refused = refuse_all(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return OffsetCommitResponse(topics=[_answer(topic, refused) for topic in request.topics])
    try:
        broker.groups.check_room(request.group_id)
    except KafkaError as error:
        broker.log_refusal("OffsetCommit", error.code, error.message)
        return OffsetCommitResponse(topics=[_answer(topic, refuse_all(error.code)) for topic in request.topics])
    response = OffsetCommitResponse(
        topics=[_answer(topic, _refusal(broker, context, topic)) for topic in request.topics]
    )
    topic_ids = broker.metadata.ids_of(topic.name for topic in request.topics)
    committed: list[Promise[OffsetCommitResponse]] = []
    for part, answer in parts_of(request, response):
        committed.append(_commit(broker, part, answer, topic_ids, context.api_version))
        yield
    return gather(committed).map(lambda _: response)


def _commit(
    broker: Broker,
    request: OffsetCommitRequest,
    response: OffsetCommitResponse,
    topic_ids: Mapping[str, UUID],
    version: int,
) -> Promise[OffsetCommitResponse]:
    return broker.groups.run(
        request.group_id,
        lambda shard, reply, now_ms: shard.commits.commit(request, response, reply, now_ms, topic_ids, version),
        lambda error: offsets_refused(response, error),
    )


def _refusal(broker: Broker, context: RequestContext, topic: OffsetCommitRequestTopic) -> Refusal:
    """From here on a topic has its name."""
    if context.api_version >= _TOPIC_ID_VERSION:
        known = broker.metadata.topics_by_id.get(topic.topic_id)
        if known is None:
            return refuse_all(ErrorCode.UNKNOWN_TOPIC_ID)
        topic.name = known.name
    return refusal_of(broker, context, topic.name)


def _answer(topic: OffsetCommitRequestTopic, refusal: Refusal) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(
                partition_index=entry.partition_index, error_code=refusal(entry.partition_index)
            )
            for entry in topic.partitions
        ],
    )
