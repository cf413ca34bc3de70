"""CreateTopics (19), v2-7. A topic named twice in a request is refused, in one answer, as in Kafka."""

from __future__ import annotations

from collections import Counter

from oncelog.cluster.metadata_entries import Topic
from oncelog.core.config import format_value
from oncelog.core.config_resources import ConfigSource
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise, gather
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from oncelog.server import config_resources
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, one_by_one


def handle(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> Steps[Promise[CreateTopicsResponse]]:
    counts = Counter(topic.name for topic in request.topics)
    results = yield from one_by_one(
        lambda topic: _answer(broker, context, topic, request.validate_only, duplicate=counts[topic.name] > 1),
        {topic.name: topic for topic in request.topics}.values(),
    )
    return gather(results).map(lambda topics: CreateTopicsResponse(topics=topics))


def _answer(
    broker: Broker, context: RequestContext, wanted: CreatableTopic, validate_only: bool, duplicate: bool
) -> Promise[CreatableTopicResult]:
    try:
        if not context.may(Operation.CREATE, Resource.CLUSTER):
            context.require(Operation.CREATE, Resource.TOPIC, wanted.name)
        if duplicate:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        if wanted.name not in broker.metadata.topics and not validate_only:
            count = len(wanted.assignments) or max(1, wanted.num_partitions)
            broker.quotas.take_mutations(context, count)
        created = _create(broker, wanted, validate_only)
    except KafkaError as error:
        created = Promise.resolved(error)

    def answer(topic: Topic | KafkaError) -> CreatableTopicResult:
        if isinstance(topic, Topic) and not validate_only:
            context.tell_change("TOPIC", topic.name, f"created with {topic.partition_count} partition(s)")
        return _result(broker, context, wanted.name, topic)

    return created.map(answer)


def _result(broker: Broker, context: RequestContext, name: str, topic: Topic | KafkaError) -> CreatableTopicResult:
    if isinstance(topic, KafkaError):
        return CreatableTopicResult(
            name=name, error_code=topic.code, error_message=topic.message or None,
            num_partitions=-1, replication_factor=-1, configs=None,
        )  # fmt: skip
    config_resources.warn_of_no_effect(f"topic {name}", TOPIC_CONFIG.parse(topic.configs), broker.settings)
    result = CreatableTopicResult(name=name, topic_id=topic.topic_id)
    if context.may(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name):
        result.num_partitions, result.replication_factor = topic.partition_count, 1
        result.configs = _describe(broker, topic)
    else:
        result.num_partitions = result.replication_factor = -1
        result.configs, result.topic_config_error_code = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return result


def _create(broker: Broker, wanted: CreatableTopic, validate_only: bool) -> Promise[Topic | KafkaError]:
    assignments = {entry.partition_index: entry.broker_ids for entry in wanted.assignments}
    if len(assignments) < len(wanted.assignments):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned twice")
    count, factor = wanted.num_partitions, wanted.replication_factor
    if not assignments:
        # -1 asks for the broker's defaults (KIP-464).
        count = broker.settings.integer("num.partitions") if count == -1 else count
        factor = min(1, broker.settings.integer("default.replication.factor")) if factor == -1 else factor
    names = [config.name for config in wanted.configs]
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_CONFIG, "a setting is given twice")
    configs = {config.name: config.value for config in wanted.configs}
    return broker.topics.create(wanted.name, count, configs, factor, assignments, validate_only=validate_only)


def _describe(broker: Broker, topic: Topic) -> list[CreatableTopicConfigs]:
    settings = broker.broker_settings.topic_settings(topic.configs)
    described = []
    for key in TOPIC_CONFIG:
        if key.internal:
            continue
        synonyms = broker.broker_settings.topic_synonyms(key, topic.configs)
        described.append(
            CreatableTopicConfigs(
                name=key.name,
                value=format_value(settings.get(key.name)),
                config_source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
            )
        )
    return described
