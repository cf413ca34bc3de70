"""DescribeProducers (61), v0: the producers a partition knows, and where their open transactions begin (KIP-664)."""

from __future__ import annotations

from oncelog.controller.topic_rules import name_problem
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import ITEM_BYTES, Steps
from oncelog.storage.producer_state import ProducerStatus

_PRODUCERS_PER_STEP = 100


def handle(
    broker: Broker, request: DescribeProducersRequest, context: RequestContext
) -> Steps[DescribeProducersResponse]:
    # A small request must not get a huge answer by asking for the same partition again and again.
    once: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        once.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    response = DescribeProducersResponse()
    for name, indexes in once.items():
        described = TopicResponse(name=name)
        response.topics.append(described)
        for index in indexes:
            described.partitions.append((yield from _answer(broker, context, name, index)))
            yield
        yield
    return response


def _answer(broker: Broker, context: RequestContext, topic: str, index: int) -> Steps[PartitionResponse]:
    try:
        context.require(Operation.READ, Resource.TOPIC, topic)
        if (problem := name_problem(topic)) is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        partition = broker.partitions.get(topic, index)
    except KafkaError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message or None)
    producers = list(partition.log.producer_state.active_producers())
    response = PartitionResponse(partition_index=index, error_message=None)
    for first in range(0, len(producers), _PRODUCERS_PER_STEP):
        response.active_producers += map(_described, producers[first : first + _PRODUCERS_PER_STEP])
        yield _PRODUCERS_PER_STEP * ITEM_BYTES
    return response


def _described(producer: ProducerStatus) -> ProducerState:
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.txn_first_offset,
    )
