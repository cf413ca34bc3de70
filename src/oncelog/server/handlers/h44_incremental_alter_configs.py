"""IncrementalAlterConfigs (44), v0-1: sets, deletes, appends to or subtracts from single settings."""

from __future__ import annotations

from oncelog.core.promise import Promise
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from oncelog.server import config_resources
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps


def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> Steps[Promise[IncrementalAlterConfigsResponse]]:
    results = yield from config_resources.alter_each(
        request.resources,
        lambda resource: config_resources.change(broker, context, resource, request.validate_only),
        AlterConfigsResourceResponse,
    )
    return results.map(lambda responses: IncrementalAlterConfigsResponse(responses=responses))
