"""ElectLeaders (43), v0-2: a broker by itself leads all partitions already. In a cluster, controllers answer."""

from __future__ import annotations

from collections.abc import Callable

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import ITEM_BYTES, Steps, one_by_one

_ELECTION_TYPES = (0, 1)


def handle(broker: Broker, request: ElectLeadersRequest, context: RequestContext) -> Steps[ElectLeadersResponse]:
    try:
        context.require(Operation.ALTER, Resource.CLUSTER)
        if request.election_type not in _ELECTION_TYPES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    except KafkaError as error:
        refused = (error.code, error.message)
        results = yield from _results(request, lambda topic, index: refused)
        return ElectLeadersResponse(error_code=error.code, replica_election_results=results)
    if request.topic_partitions is None:
        # Partitions that need no election are left out here.
        names = list(broker.metadata.topics)
        results = yield from one_by_one(lambda name: ReplicaElectionResult(topic=name), names)
    else:
        results = yield from _results(request, lambda *place: _outcome(broker, *place))
    return ElectLeadersResponse(replica_election_results=results)


def _results(
    request: ElectLeadersRequest, outcome: Callable[[str, int], tuple[ErrorCode, str | None]]
) -> Steps[list[ReplicaElectionResult]]:
    results = []
    for topic in request.topic_partitions or []:
        result = ReplicaElectionResult(topic=topic.topic)
        results.append(result)
        for index in topic.partitions:
            code, text = outcome(topic.topic, index)
            result.partition_result.append(PartitionResult(partition_id=index, error_code=code, error_message=text))
            yield ITEM_BYTES
        yield
    return results


def _outcome(broker: Broker, name: str, index: int) -> tuple[ErrorCode, str | None]:
    topic = broker.metadata.topics.get(name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    if not 0 <= index < topic.partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
    return ErrorCode.ELECTION_NOT_NEEDED, None
