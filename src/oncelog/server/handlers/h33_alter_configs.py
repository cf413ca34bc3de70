"""AlterConfigs (33), v0-2: replaces all of a resource's settings. Deprecated by Kafka, still sent by clients."""

from __future__ import annotations

from oncelog.core.promise import Promise
from oncelog.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from oncelog.server import config_resources
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps


def handle(
    broker: Broker, request: AlterConfigsRequest, context: RequestContext
) -> Steps[Promise[AlterConfigsResponse]]:
    results = yield from config_resources.alter_each(
        request.resources,
        lambda resource: config_resources.replace(broker, context, resource, request.validate_only),
        AlterConfigsResourceResponse,
    )
    return results.map(lambda responses: AlterConfigsResponse(responses=responses))
