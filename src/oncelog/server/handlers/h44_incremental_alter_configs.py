"""IncrementalAlterConfigs (44), v0-1: sets, deletes, appends to or subtracts from single settings."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise, gather
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from oncelog.server import config_resources
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> Promise[IncrementalAlterConfigsResponse]:
    results = [_answer(broker, context, resource, request.validate_only) for resource in request.resources]
    return gather(results).map(lambda responses: IncrementalAlterConfigsResponse(responses=responses))


def _answer(
    broker: Broker, context: RequestContext, resource: AlterConfigsResource, validate_only: bool
) -> Promise[AlterConfigsResourceResponse]:
    kind, name = resource.resource_type, resource.resource_name
    operations = [(config.name, config.config_operation, config.value) for config in resource.configs]
    changed = config_resources.change(broker, context, kind, name, operations, validate_only)
    return changed.map(
        lambda error: AlterConfigsResourceResponse(
            error_code=error.code if error else ErrorCode.NONE,
            error_message=error.message if error else None,
            resource_type=kind,
            resource_name=name,
        )
    )
