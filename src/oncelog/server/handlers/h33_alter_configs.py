"""AlterConfigs (33), v0-2: replaces all of a resource's settings. Deprecated by Kafka, still sent by clients."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise, gather
from oncelog.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from oncelog.server import config_resources
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(broker: Broker, request: AlterConfigsRequest, context: RequestContext) -> Promise[AlterConfigsResponse]:
    results = [_answer(broker, context, resource, request.validate_only) for resource in request.resources]
    return gather(results).map(lambda responses: AlterConfigsResponse(responses=responses))


def _answer(
    broker: Broker, context: RequestContext, resource: AlterConfigsResource, validate_only: bool
) -> Promise[AlterConfigsResourceResponse]:
    kind, name = resource.resource_type, resource.resource_name
    entries = {config.name: config.value for config in resource.configs}
    changed = config_resources.replace(broker, context, kind, name, entries, validate_only)
    return changed.map(
        lambda error: AlterConfigsResourceResponse(
            error_code=error.code if error else ErrorCode.NONE,
            error_message=error.message if error else None,
            resource_type=kind,
            resource_name=name,
        )
    )
