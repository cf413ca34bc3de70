"""CreatePartitions (37), v0-3."""

from __future__ import annotations

from collections import Counter

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise, gather
from oncelog.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, in_steps, one_by_one


def handle(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> Steps[Promise[CreatePartitionsResponse]]:
    counts = Counter((yield from in_steps(topic.name for topic in request.topics)))
    results = yield from one_by_one(
        lambda topic: _answer(broker, context, topic, request.validate_only, counts[topic.name] > 1), request.topics
    )
    return gather(results).map(lambda topics: CreatePartitionsResponse(results=topics))


def _answer(
    broker: Broker, context: RequestContext, wanted: CreatePartitionsTopic, validate_only: bool, duplicate: bool
) -> Promise[CreatePartitionsTopicResult]:
    try:
        context.require(Operation.ALTER, Resource.TOPIC, wanted.name)
        if duplicate:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        known = broker.metadata.topics.get(wanted.name)
        if known is not None and wanted.count > known.partition_count and not validate_only:
            broker.quotas.take_mutations(context, wanted.count - known.partition_count)
    except KafkaError as error:
        return Promise.resolved(_result(wanted.name, error))
    assignments = None if wanted.assignments is None else [entry.broker_ids for entry in wanted.assignments]
    changed = broker.topics.set_partition_count(wanted.name, wanted.count, assignments, validate_only=validate_only)

    def answer(error: KafkaError | None) -> CreatePartitionsTopicResult:
        if error is None and not validate_only:
            context.tell_change("TOPIC", wanted.name, f"has {wanted.count} partition(s) now")
        return _result(wanted.name, error)

    return changed.map(answer)


def _result(name: str, error: KafkaError | None) -> CreatePartitionsTopicResult:
    if error is None:
        return CreatePartitionsTopicResult(name=name, error_message=None)
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=error.message or None)
