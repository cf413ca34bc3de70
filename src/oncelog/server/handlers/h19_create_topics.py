"""CreateTopics (19), v2-7. A topic named twice in a request is refused, in one answer, as in Kafka."""

from __future__ import annotations

from collections import Counter

from oncelog.cluster.metadata import Topic
from oncelog.cluster.topic_settings import Source
from oncelog.core.config import format_value
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NULL_UUID
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


def handle(broker: Broker, request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
    counts = Counter(topic.name for topic in request.topics)
    return CreateTopicsResponse(
        topics=[
            _answer(broker, context, topic, request.validate_only, duplicate=counts[topic.name] > 1)
            for topic in {topic.name: topic for topic in request.topics}.values()
        ]
    )


def _answer(
    broker: Broker, context: RequestContext, wanted: CreatableTopic, validate_only: bool, duplicate: bool
) -> CreatableTopicResult:
    try:
        if not context.may(Operation.CREATE, Resource.CLUSTER):
            context.require(Operation.CREATE, Resource.TOPIC, wanted.name)
        if duplicate:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        count, configs = _check(broker, wanted)
        topic = None if validate_only else broker.topics.create(wanted.name, count, configs)
        config_resources.warn_of_no_effect(f"topic {wanted.name}", TOPIC_CONFIG.parse(configs))
    except KafkaError as error:
        return CreatableTopicResult(
            name=wanted.name, error_code=error.code, error_message=error.message or None,
            num_partitions=-1, replication_factor=-1, configs=None,
        )  # fmt: skip
    result = CreatableTopicResult(name=wanted.name)
    if context.may(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, wanted.name):
        result.num_partitions, result.replication_factor = count, 1
        result.configs = _describe(broker, Topic(wanted.name, NULL_UUID, count, configs))
    else:
        result.num_partitions = result.replication_factor = -1
        result.configs, result.topic_config_error_code = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic is not None:
        result.topic_id = topic.topic_id
    return result


def _check(broker: Broker, wanted: CreatableTopic) -> tuple[int, dict[str, str]]:
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
    return broker.topics.check_new(
        wanted.name, count, factor, assignments, {config.name: config.value for config in wanted.configs}
    )


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
                config_source=synonyms[0].source if synonyms else Source.DEFAULT,
            )
        )
    return described
