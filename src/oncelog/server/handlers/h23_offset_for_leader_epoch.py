"""OffsetForLeaderEpoch (23), v2-4: where an epoch ended, so that a client can see whether its position was cut off."""

from __future__ import annotations

from oncelog.core.errors import KafkaError
from oncelog.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, one_by_one


def handle(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> Steps[OffsetForLeaderEpochResponse]:
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        once = {wanted.partition: wanted for wanted in topic.partitions}
        name = topic.topic
        answers = yield from one_by_one(lambda wanted, name=name: _answer(broker, context, name, wanted), once.values())  # type: ignore[misc]
        response.topics.append(OffsetForLeaderTopicResult(topic=name, partitions=answers))
        yield
    return response


def _answer(broker: Broker, context: RequestContext, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        if not context.may(Operation.CLUSTER_ACTION, Resource.CLUSTER):
            context.require(Operation.DESCRIBE, Resource.TOPIC, topic)
        partition = broker.partitions.get(topic, wanted.partition)
        partition.check_leader_epoch(wanted.current_leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(partition=wanted.partition, error_code=error.code, leader_epoch=-1, end_offset=-1)
    if wanted.leader_epoch == partition.leader_epoch:
        return EpochEndOffset(
            partition=wanted.partition, leader_epoch=wanted.leader_epoch, end_offset=partition.log.log_end_offset
        )
    found = partition.log.end_offset_for_epoch(wanted.leader_epoch)
    return EpochEndOffset(partition=wanted.partition, leader_epoch=found.epoch, end_offset=found.end_offset)
