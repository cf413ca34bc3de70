"""DescribeTopicPartitions (75), v0: topics in the order of their names, in pages.

The lists of eligible leader replicas are empty, never null: Java clients fail on null.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from heapq import merge

from oncelog.cluster.metadata import Topic, state_of
from oncelog.cluster.partition_state import PartitionState
from oncelog.controller.topic_rules import name_problem
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import INTERNAL_TOPICS, NodeId
from oncelog.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from oncelog.server.authorization import NOT_ASKED, Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, in_steps

_PARTITIONS_PER_ANSWER_MAX = 2000
_PARTITION_BYTES = 450
_NAMES_PER_STEP = 1000


def handle(
    broker: Broker, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> Steps[DescribeTopicPartitionsResponse]:
    asked = yield from in_steps(topic.name for topic in request.topics)
    names = yield from _in_order(list(dict.fromkeys(asked)) or list(broker.metadata.topics))
    cursor = request.cursor or Cursor(topic_name="", partition_index=0)
    room = max(1, min(request.response_partition_limit, _PARTITIONS_PER_ANSWER_MAX))
    response = DescribeTopicPartitionsResponse(next_cursor=None)
    for name in names:
        yield
        if name < cursor.topic_name:
            continue
        first_partition = max(0, cursor.partition_index) if name == cursor.topic_name else 0
        is_allowed = context.permits if request.topics else context.may
        if not is_allowed(Operation.DESCRIBE, Resource.TOPIC, name):
            if request.topics:
                response.topics.append(_failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, NOT_ASKED))
            continue
        topic = broker.metadata.topics.get(name)
        if topic is None:
            response.topics.append(_unknown(name, context))
            continue
        if room == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=first_partition)
            break
        last = min(topic.partition_count, first_partition + room)
        response.topics.append((yield from _describe(broker, context, topic, first_partition, last)))
        room -= last - first_partition
        if last < topic.partition_count:
            response.next_cursor = Cursor(topic_name=name, partition_index=last)
            break
    return response


def _in_order(names: list[str]) -> Steps[Iterator[str]]:
    """Sorted in parts, as the whole may take long."""
    parts: list[list[str]] = []
    for first in range(0, len(names), _NAMES_PER_STEP):
        parts.append(sorted(names[first : first + _NAMES_PER_STEP]))
        yield
    return merge(*parts)


def _unknown(name: str, context: RequestContext) -> DescribeTopicPartitionsResponseTopic:
    is_valid = name_problem(name) is None
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid else ErrorCode.INVALID_TOPIC_EXCEPTION
    return _failed(name, code, context.operations_on(Resource.TOPIC, name))


def _failed(name: str, code: ErrorCode, operations: int) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name, topic_authorized_operations=operations)


def _describe(
    broker: Broker, context: RequestContext, topic: Topic, first: int, last: int
) -> Steps[DescribeTopicPartitionsResponseTopic]:
    alive = broker.nodes(context).keys()
    images = broker.metadata.partitions_of(topic)  # as they are now
    partitions = yield from in_steps(
        (_partition(index, state_of(images.get(index)), alive) for index in range(first, last)), _PARTITION_BYTES
    )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=context.operations_on(Resource.TOPIC, topic.name),
    )


def _partition(index: int, state: PartitionState, alive: Set[NodeId]) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE if state.leader in alive else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=state.leader if state.leader in alive else -1,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.in_sync),
        eligible_leader_replicas=list(state.eligible),
        last_known_elr=list(state.last_known_eligible),
        offline_replicas=[replica for replica in state.replicas if replica not in alive],
    )
