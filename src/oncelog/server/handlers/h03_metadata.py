"""Metadata (3), v0-13: brokers, topics and their partitions; creates a missing topic when asked by name and allowed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Final

from oncelog.cluster.metadata import Topic, state_of
from oncelog.controller.topic_rules import name_problem
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import INTERNAL_TOPICS, NULL_UUID, NodeId
from oncelog.core.promise import Promise, gather
from oncelog.core.steps import at_once
from oncelog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from oncelog.server.authorization import NOT_ASKED, Operation, Resource
from oncelog.server.broker import Broker, Node
from oncelog.server.context import RequestContext
from oncelog.server.turns import ITEM_BYTES, Steps, in_steps

if TYPE_CHECKING:
    from oncelog.controller.partition_image import PartitionImage

_AUTO_CREATION_FLAG_VERSION = 4
_LISTENER_ERROR_VERSION = 6
_TOPIC_ID_VERSION = 12
_PARTITIONS_PER_STEP = 1000
_NO_LEADER: Final = NodeId(-1)


def handle(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> Steps[MetadataResponse | Promise[MetadataResponse]]:
    nodes = broker.nodes(context)
    found = yield from _topics(broker, request, context, nodes.keys())
    topics = gather(found)
    if topics.done:
        return (yield from _respond(broker, request, context, topics.value, nodes))
    return topics.chain(
        lambda topics: broker.turns.begin(
            _respond(broker, request, context, topics, broker.nodes(context)), context.peer
        )
    )


def _respond(
    broker: Broker,
    request: MetadataRequest,
    context: RequestContext,
    topics: list[MetadataResponseTopic],
    nodes: Mapping[NodeId, Node],
) -> Steps[MetadataResponse]:
    if request.include_topic_authorized_operations:
        for described in topics:
            yield
            if described.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                described.topic_authorized_operations = context.operations_on(Resource.TOPIC, described.name or "")
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in nodes.values()
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        topics=topics,
        cluster_authorized_operations=context.operations_on_cluster()
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )


def _topics(
    broker: Broker, request: MetadataRequest, context: RequestContext, alive: Set[NodeId]
) -> Steps[list[Promise[MetadataResponseTopic]]]:
    found: list[Promise[MetadataResponseTopic]] = []
    asked, version = request.topics, context.api_version
    # Version 0 knew no null: an empty list meant all topics.
    if asked is None or (version == 0 and not asked):
        for topic in list(broker.metadata.topics.values()):
            if context.may(Operation.DESCRIBE, Resource.TOPIC, topic.name):
                found.append(Promise.resolved((yield from _describe(broker, topic, context, alive))))
            yield ITEM_BYTES
        return found
    if version < _TOPIC_ID_VERSION and any(topic.name is None or topic.topic_id != NULL_UUID for topic in asked):
        # Versions 10 and 11 have the fields, but an answer of theirs cannot leave a name out.
        refused = (Promise.resolved(_failed(topic.name or "", ErrorCode.INVALID_REQUEST)) for topic in asked)
        return (yield from in_steps(refused))
    may_create = request.allow_auto_topic_creation or version < _AUTO_CREATION_FLAG_VERSION
    # A small request must not get a huge answer by asking for the same topic again and again.
    named = asked if len(asked) == 1 else (yield from _each_once(asked))
    for wanted in named:
        if found:
            yield ITEM_BYTES
        found.append((yield from _answer(broker, wanted, context, may_create, alive)))
    return found


def _each_once(asked: list[MetadataRequestTopic]) -> Steps[Iterable[MetadataRequestTopic]]:
    # The name beside an id is not looked at.
    keys = yield from in_steps(topic.name if topic.topic_id == NULL_UUID else topic.topic_id for topic in asked)
    return dict(zip(keys, asked, strict=True)).values()


def _answer(
    broker: Broker, asked: MetadataRequestTopic, context: RequestContext, may_create: bool, alive: Set[NodeId]
) -> Steps[Promise[MetadataResponseTopic]]:
    found, name = (yield from _find(broker, asked, context, alive)), asked.name or ""
    if not may_create or found.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return Promise.resolved(found)
    if not context.may(Operation.CREATE, Resource.CLUSTER) and not context.permits(
        Operation.CREATE, Resource.TOPIC, name
    ):
        return Promise.resolved(_failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    return broker.auto_create_topic(name).map(
        lambda topic: (
            _failed(name, topic.code)
            if isinstance(topic, KafkaError)
            else at_once(_describe(broker, topic, context, broker.nodes(context).keys()))
        )
    )


def _find(
    broker: Broker, asked: MetadataRequestTopic, context: RequestContext, alive: Set[NodeId]
) -> Steps[MetadataResponseTopic]:
    if asked.topic_id != NULL_UUID:
        topic = broker.metadata.topics_by_id.get(asked.topic_id)
        if topic is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id)
        if not context.permits(Operation.DESCRIBE, Resource.TOPIC, topic.name):
            refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return MetadataResponseTopic(error_code=refused, name=None, topic_id=asked.topic_id)
        return (yield from _describe(broker, topic, context, alive))
    name = asked.name or ""
    if not context.permits(Operation.DESCRIBE, Resource.TOPIC, name):
        return _failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = broker.metadata.topics.get(name)
    if topic is not None:
        return (yield from _describe(broker, topic, context, alive))
    return _failed(
        name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name_problem(name) is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    )


def _failed(name: str, code: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)


def _missing(broker: Broker, leader: NodeId, context: RequestContext) -> ErrorCode:
    if context.api_version < _LISTENER_ERROR_VERSION:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return broker.why_out_of_reach(leader, context)


def _describe(
    broker: Broker, topic: Topic, context: RequestContext, alive: Set[NodeId]
) -> Steps[MetadataResponseTopic]:
    images = broker.metadata.partitions_of(topic)
    errors = {_NO_LEADER: _missing(broker, _NO_LEADER, context)}
    for number, image in enumerate(images.values(), 1):
        if number % _PARTITIONS_PER_STEP == 0:
            yield
        leader = image.leader
        if leader not in alive and leader not in errors:
            errors[leader] = _missing(broker, leader, context)
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=_Partitions(topic.partition_count, images, alive, errors),  # type: ignore[arg-type]  # as good as a list for its encoder
    )


class _Partitions:
    """The partitions of a topic, each made when it is encoded: as objects they take ten times the memory of their
    bytes, and the answers to many clients are made at the same time. A worker may encode them: nothing here changes."""

    def __init__(
        self, count: int, images: Mapping[int, PartitionImage], alive: Set[NodeId], errors: Mapping[NodeId, ErrorCode]
    ) -> None:
        """`errors` has all leaders that are not alive."""
        self._count = count
        self._images = images
        self._alive = alive
        self._errors = errors

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[MetadataResponsePartition]:
        return map(self.__getitem__, range(self._count))

    def __getitem__(self, index: int) -> MetadataResponsePartition:
        state, alive = state_of(self._images.get(index)), self._alive
        has_leader = state.leader in alive
        return MetadataResponsePartition(
            error_code=ErrorCode.NONE if has_leader else self._errors[state.leader],
            partition_index=index,
            leader_id=state.leader if has_leader else _NO_LEADER,
            leader_epoch=state.leader_epoch,
            replica_nodes=[*state.replicas],
            isr_nodes=[*state.in_sync],
            offline_replicas=[replica for replica in state.replicas if replica not in alive],
        )
