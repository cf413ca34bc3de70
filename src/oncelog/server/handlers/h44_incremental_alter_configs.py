"""IncrementalAlterConfigs (44), v0-1: sets, deletes, appends to or subtracts from single settings."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from oncelog.server import config_resources
from oncelog.server.authorization import Operation
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[_answer(broker, context, resource, request.validate_only) for resource in request.resources]
    )


def _answer(
    broker: Broker, context: RequestContext, resource: AlterConfigsResource, validate_only: bool
) -> AlterConfigsResourceResponse:
    code, message = ErrorCode.NONE, None
    try:
        config_resources.authorize(context, Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
        operations = [(config.name, config.config_operation, config.value) for config in resource.configs]
        config_resources.change(broker, resource.resource_type, resource.resource_name, operations, validate_only)
    except KafkaError as error:
        code, message = error.code, error.message
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
