"""DeleteTopics (20), v1-6: by name, or from v6 on by id. A topic named twice in a request stays, as in Kafka.

Deviation: Kafka deletes its internal topics when told to, and with them every group and transaction; here they stay.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable

from oncelog.cluster.metadata_entries import Topic
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import INTERNAL_TOPICS, NULL_UUID
from oncelog.core.promise import Promise, gather
from oncelog.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, in_steps, one_by_one


def handle(
    broker: Broker, request: DeleteTopicsRequest, context: RequestContext
) -> Steps[Promise[DeleteTopicsResponse]]:
    keys: Iterable[tuple[str | None, uuid.UUID]] = ((topic.name, topic.topic_id) for topic in request.topics)
    if not request.topics:
        keys = ((name, NULL_UUID) for name in request.topic_names)
    counts: Counter[tuple[str | None, uuid.UUID]] = Counter((yield from in_steps(keys)))
    results = yield from one_by_one(
        lambda topic: _answer(broker, context, DeleteTopicState(name=topic[0], topic_id=topic[1]), counts[topic] > 1),
        counts,
    )
    return gather(results).map(lambda responses: DeleteTopicsResponse(responses=responses))


def _answer(
    broker: Broker, context: RequestContext, wanted: DeleteTopicState, duplicate: bool
) -> Promise[DeletableTopicResult]:
    try:
        if duplicate:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {'id' if wanted.name is None else 'name'}.")
        if wanted.name is not None and wanted.topic_id == NULL_UUID:
            _authorize(context, wanted.name)
            if not context.may(Operation.DELETE, Resource.CLUSTER):
                # Whether the name exists would show, which is for those who may describe it.
                context.require(Operation.DESCRIBE, Resource.TOPIC, wanted.name)
        topic = _find(broker, wanted)
        _authorize(context, topic.name)
        if topic.name in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{topic.name} holds all groups or transactions and stays.")
        if not broker.settings.boolean("delete.topic.enable"):
            disabled = ErrorCode.TOPIC_DELETION_DISABLED if context.api_version >= 3 else ErrorCode.INVALID_REQUEST
            raise KafkaError(disabled, "Topic deletion is disabled: delete.topic.enable is false.")
        broker.quotas.take_mutations(context, topic.partition_count)
    except KafkaError as error:
        return Promise.resolved(_result(wanted.name, wanted.topic_id, error))

    def answer(error: KafkaError | None) -> DeletableTopicResult:
        if error is None:
            context.tell_change("TOPIC", topic.name, "deleted")
        return _result(topic.name, topic.topic_id, error)

    return broker.topics.delete(topic).map(answer)


def _result(name: str | None, topic_id: uuid.UUID, error: KafkaError | None) -> DeletableTopicResult:
    if error is None:
        return DeletableTopicResult(name=name, topic_id=topic_id)
    return DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=error.code, error_message=error.message or None
    )


def _authorize(context: RequestContext, name: str) -> None:
    if not context.may(Operation.DELETE, Resource.CLUSTER):
        context.require(Operation.DELETE, Resource.TOPIC, name)


def _find(broker: Broker, wanted: DeleteTopicState) -> Topic:
    if wanted.topic_id == NULL_UUID:
        if wanted.name is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        return broker.topics.require(wanted.name)
    if wanted.name is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    topic = broker.metadata.topics_by_id.get(wanted.topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    return topic
