"""AlterConfigs (33), v0-2: replaces all of a resource's settings. Deprecated by Kafka, still sent by clients."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from oncelog.server import config_resources
from oncelog.server.authorization import Operation
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(broker: Broker, request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[_answer(broker, context, resource, request.validate_only) for resource in request.resources]
    )


def _answer(
    broker: Broker, context: RequestContext, resource: AlterConfigsResource, validate_only: bool
) -> AlterConfigsResourceResponse:
    code, message = ErrorCode.NONE, None
    try:
        config_resources.authorize(context, Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
        entries = {config.name: config.value for config in resource.configs}
        config_resources.replace(broker, resource.resource_type, resource.resource_name, entries, validate_only)
    except KafkaError as error:
        code, message = error.code, error.message
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
