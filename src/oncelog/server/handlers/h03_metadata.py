"""Metadata (3), v0-13: brokers, topics and their partitions; creates a missing topic when asked by name and allowed."""

from __future__ import annotations

from collections.abc import Set

from oncelog.cluster.metadata_entries import Topic
from oncelog.cluster.topics import name_problem
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import INTERNAL_TOPICS, NULL_UUID, NodeId
from oncelog.core.promise import Promise, gather
from oncelog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from oncelog.server.authorization import NOT_ASKED, Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, at_once

_AUTO_CREATION_FLAG_VERSION = 4
_TOPIC_ID_VERSION = 12
_PARTITIONS_PER_STEP = 100


def handle(broker: Broker, request: MetadataRequest, context: RequestContext) -> Steps[Promise[MetadataResponse]]:
    found = yield from _topics(broker, request, context)
    return gather(found).map(lambda topics: _respond(broker, request, context, topics))


def _respond(
    broker: Broker, request: MetadataRequest, context: RequestContext, topics: list[MetadataResponseTopic]
) -> MetadataResponse:
    if request.include_topic_authorized_operations:
        for described in topics:
            if described.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                described.topic_authorized_operations = context.operations_on(Resource.TOPIC, described.name or "")
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in broker.nodes(context).values()
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        topics=topics,
        cluster_authorized_operations=context.operations_on_cluster()
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )


def _topics(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> Steps[list[Promise[MetadataResponseTopic]]]:
    found: list[Promise[MetadataResponseTopic]] = []
    alive = broker.nodes(context).keys()
    asked, version = request.topics, context.api_version
    # Version 0 knew no null: an empty list meant all topics.
    if asked is None or (version == 0 and not asked):
        for topic in list(broker.metadata.topics.values()):
            if context.may(Operation.DESCRIBE, Resource.TOPIC, topic.name):
                found.append(Promise.resolved((yield from _describe(broker, topic, alive))))
            yield
        return found
    if version < _TOPIC_ID_VERSION and any(topic.name is None or topic.topic_id != NULL_UUID for topic in asked):
        # Versions 10 and 11 have the fields, but an answer of theirs cannot leave a name out.
        return [Promise.resolved(_failed(topic.name or "", ErrorCode.INVALID_REQUEST)) for topic in asked]
    may_create = request.allow_auto_topic_creation or version < _AUTO_CREATION_FLAG_VERSION
    # A small request must not get a huge answer by asking for the same topic again and again.
    once = {(topic.topic_id, topic.name): topic for topic in asked}
    for wanted in once.values():
        found.append((yield from _answer(broker, wanted, context, may_create, alive)))
        yield
    return found


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
            else at_once(_describe(broker, topic, broker.nodes(context).keys()))
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
        return (yield from _describe(broker, topic, alive))
    name = asked.name or ""
    if not context.permits(Operation.DESCRIBE, Resource.TOPIC, name):
        return _failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = broker.metadata.topics.get(name)
    if topic is not None:
        return (yield from _describe(broker, topic, alive))
    return _failed(
        name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name_problem(name) is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    )


def _failed(name: str, code: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)


def _describe(broker: Broker, topic: Topic, alive: Set[NodeId]) -> Steps[MetadataResponseTopic]:
    described = MetadataResponseTopic(
        name=topic.name, topic_id=topic.topic_id, is_internal=topic.name in INTERNAL_TOPICS
    )
    for index in range(topic.partition_count):
        state = broker.metadata.partition_state(topic, index)
        described.partitions.append(
            MetadataResponsePartition(
                error_code=ErrorCode.NONE if state.leader in alive else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=state.leader if state.leader in alive else -1,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.in_sync),
                offline_replicas=[replica for replica in state.replicas if replica not in alive],
            )
        )
        if index % _PARTITIONS_PER_STEP == 0:
            yield
    return described
