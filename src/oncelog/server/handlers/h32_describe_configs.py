"""DescribeConfigs (32), v1-4: topics and this broker."""

from __future__ import annotations

from oncelog.core.errors import KafkaError
from oncelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from oncelog.server import config_resources
from oncelog.server.authorization import Operation
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, one_by_one


def handle(broker: Broker, request: DescribeConfigsRequest, context: RequestContext) -> Steps[DescribeConfigsResponse]:
    # A small request must not get a huge answer by asking for the same resource again and again.
    once = {
        (resource.resource_type, resource.resource_name, tuple(resource.configuration_keys or ("*",))): resource
        for resource in request.resources
    }
    results = yield from one_by_one(lambda resource: _answer(broker, context, resource, request), once.values())
    return DescribeConfigsResponse(results=results)


def _answer(
    broker: Broker, context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    try:
        config_resources.authorize(context, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
        described = config_resources.describe(
            broker, resource.resource_type, resource.resource_name, resource.configuration_keys
        )
    except KafkaError as error:
        return DescribeConfigsResult(
            error_code=error.code,
            error_message=error.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
    return DescribeConfigsResult(
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[
            DescribeConfigsResourceResult(
                name=config.key.name,
                value=config.value,
                read_only=config.read_only,
                config_source=config.source,
                is_sensitive=config.key.sensitive,
                synonyms=[
                    DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
                    for synonym in (config.synonyms if request.include_synonyms else [])
                ],
                config_type=config.key.type,
                documentation=config.key.explanation if request.include_documentation else None,
            )
            for config in described
        ],
    )
