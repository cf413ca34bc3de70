"""CreatePartitions (37), v0-3."""

from __future__ import annotations

from collections import Counter

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(broker: Broker, request: CreatePartitionsRequest, context: RequestContext) -> CreatePartitionsResponse:
    counts = Counter(topic.name for topic in request.topics)
    return CreatePartitionsResponse(
        results=[
            _answer(broker, context, topic, request.validate_only, counts[topic.name] > 1) for topic in request.topics
        ]
    )


def _answer(
    broker: Broker, context: RequestContext, wanted: CreatePartitionsTopic, validate_only: bool, duplicate: bool
) -> CreatePartitionsTopicResult:
    try:
        context.require(Operation.ALTER, Resource.TOPIC, wanted.name)
        if duplicate:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        topic = broker.topics.require(wanted.name)
        assignments = None if wanted.assignments is None else [entry.broker_ids for entry in wanted.assignments]
        broker.topics.check_partition_count(topic, wanted.count, assignments)
        if not validate_only:
            broker.topics.set_partition_count(topic, wanted.count)
    except KafkaError as error:
        return CreatePartitionsTopicResult(name=wanted.name, error_code=error.code, error_message=error.message or None)
    return CreatePartitionsTopicResult(name=wanted.name, error_message=None)
