"""AlterPartitionReassignments (45), v0-1: a broker by itself has all partitions. In a cluster, controllers answer."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import ITEM_BYTES, Steps


def handle(
    broker: Broker, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> Steps[AlterPartitionReassignmentsResponse]:
    refused: KafkaError | None = None
    try:
        context.require(Operation.ALTER, Resource.CLUSTER)
    except KafkaError as error:
        refused = error
    responses = []
    for topic in request.topics:
        response = ReassignableTopicResponse(name=topic.name)
        responses.append(response)
        for wanted in topic.partitions:
            response.partitions.append(_answer(refused or _problem(broker, topic.name, wanted), wanted))
            yield ITEM_BYTES
        yield
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=refused.code if refused else ErrorCode.NONE,
        error_message=refused.message if refused else None,
        responses=responses,
    )


def _answer(problem: KafkaError | None, wanted: ReassignablePartition) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=wanted.partition_index,
        error_code=problem.code if problem else ErrorCode.NONE,
        error_message=problem.message if problem else None,
    )


def _problem(broker: Broker, name: str, wanted: ReassignablePartition) -> KafkaError | None:
    topic = broker.metadata.topics.get(name)
    if topic is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= wanted.partition_index < topic.partition_count:
        place = f"{name}:{wanted.partition_index}"
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {place}.")
    if wanted.replicas is None:
        return KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    return _misplaced(wanted.replicas, broker.node_id)


def _misplaced(replicas: list[int], here: int) -> KafkaError | None:
    """What is wrong with replicas other than the one on this broker, which is where the partition is."""
    code, prefix = ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes"
    if not replicas:
        return KafkaError(code, f"{prefix} an empty replica list.")
    for number, replica in enumerate(ordered := sorted(replicas)):
        if replica != here:
            return KafkaError(code, f"{prefix} broker {replica}, but no such broker is registered.")
        if number and ordered[number - 1] == replica:
            return KafkaError(code, f"{prefix} the broker {replica} more than once.")
    return None
