"""The answer to DescribeConfigs: of a broker, and of a controller. Each describes topics and itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from oncelog.controller.config_changes import without_settings
from oncelog.controller.topic_rules import check_name
from oncelog.core.broker_config import explanation_of
from oncelog.core.config import ConfigKey, format_value
from oncelog.core.config_resources import ConfigSource, ResourceType
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.core.topic_settings import BrokerSettings, Synonym
from oncelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, in_steps, one_by_one


class DescribedNode(NamedTuple):
    node_id: int
    settings: BrokerSettings
    topic_configs: Callable[[str], Mapping[str, str]]
    """Raises KafkaError if there is no such topic."""


def other_node(node_id: int, name: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id} or empty string, but received {name}"
    )


def _authorize(context: RequestContext, resource_type: int, name: str) -> None:
    """Settings of brokers and loggers are those of the cluster."""
    if resource_type == ResourceType.TOPIC:
        context.require(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name)
    elif resource_type == ResourceType.GROUP:
        context.require(Operation.DESCRIBE_CONFIGS, Resource.GROUP, name)
    else:
        context.require(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER)


def describe_configs(
    node: DescribedNode, request: DescribeConfigsRequest, context: RequestContext
) -> Steps[DescribeConfigsResponse]:
    # A small request must not get a huge answer by asking for the same resource again and again.
    named = yield from in_steps(
        ((resource.resource_type, resource.resource_name, tuple(resource.configuration_keys or ("*",))), resource)
        for resource in request.resources
    )
    once = dict(named)
    yield
    results = yield from one_by_one(lambda resource: _answer(node, context, resource, request), once.values())
    return DescribeConfigsResponse(results=results)


def _answer(
    node: DescribedNode, context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        _authorize(context, resource.resource_type, resource.resource_name)
        result.configs = _configs(node, resource, request)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
    return result


def _configs(
    node: DescribedNode, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    settings, name = node.settings, resource.resource_name
    # As in Kafka, no keys are all of them, as null is.
    wanted = set(resource.configuration_keys) if resource.configuration_keys else None
    topic: Mapping[str, str] | None = None
    keys: list[ConfigKey]
    if resource.resource_type == ResourceType.TOPIC:
        check_name(name)
        keys, topic = list(TOPIC_CONFIG), node.topic_configs(name)
    elif resource.resource_type == ResourceType.BROKER:
        if name not in ("", str(node.node_id)):
            raise other_node(node.node_id, name)
        keys = [*settings.table, *settings.keys_without_effect()]
    else:
        raise without_settings(resource.resource_type)
    return [
        _config(settings, key, topic, request)
        for key in keys
        if not key.internal and (wanted is None or key.name in wanted)
    ]


def _config(
    settings: BrokerSettings, key: ConfigKey, topic: Mapping[str, str] | None, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    """`topic`: what is set for a topic, or None for a setting of the node."""
    synonyms = settings.synonyms(key) if topic is None else settings.topic_synonyms(key, topic)
    if key.sensitive:
        synonyms = [Synonym(synonym.name, None, synonym.source) for synonym in synonyms]
    first = synonyms[0] if synonyms else Synonym(key.name, format_value(key.default), ConfigSource.DEFAULT)
    return DescribeConfigsResourceResult(
        name=key.name,
        value=first.value,
        read_only=topic is None and (not key.dynamic or key.name in settings.pinned),
        config_source=first.source,
        is_sensitive=key.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in (synonyms if request.include_synonyms else [])
        ],
        config_type=key.type,
        documentation=explanation_of(key, settings.settings) if request.include_documentation else None,
    )
