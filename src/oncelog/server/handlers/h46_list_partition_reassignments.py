"""ListPartitionReassignments (46), v0: a broker by itself moves none. In a cluster, controllers answer."""

from __future__ import annotations

from oncelog.core.errors import KafkaError
from oncelog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, one_by_one


def handle(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> Steps[ListPartitionReassignmentsResponse]:
    try:
        context.require(Operation.DESCRIBE, Resource.CLUSTER)
    except KafkaError as error:
        # Kafka's refusal names what was asked for.
        asked = []
        for topic in request.topics or []:
            partitions = yield from one_by_one(
                lambda index: OngoingPartitionReassignment(partition_index=index), topic.partition_indexes
            )
            asked.append(OngoingTopicReassignment(name=topic.name, partitions=partitions))
            yield
        return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message, topics=asked)
    return ListPartitionReassignmentsResponse(error_message=None)
