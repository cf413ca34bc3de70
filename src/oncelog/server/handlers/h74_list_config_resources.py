"""ListConfigResources (74), v0-1: topics and brokers. v0 asks for client metrics alone.

Groups, client metrics and loggers have no settings here, so none is named.
"""

from __future__ import annotations

from collections.abc import Iterable

from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import ITEM_BYTES, Steps

_TYPES_VERSION = 1


def handle(
    broker: Broker, request: ListConfigResourcesRequest, context: RequestContext
) -> Steps[ListConfigResourcesResponse]:
    if not context.permits(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    has_types = context.api_version >= _TYPES_VERSION
    wanted = set(request.resource_types) if has_types else {int(ResourceType.CLIENT_METRICS)}
    if not wanted <= set(ResourceType):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    names: dict[ResourceType, Iterable[str]] = {
        ResourceType.TOPIC: list(broker.metadata.topics),
        ResourceType.BROKER: [str(node_id) for node_id in broker.nodes(context)],
    }
    response = ListConfigResourcesResponse()
    for kind, found in names.items():
        for name in found if not wanted or kind in wanted else ():
            response.config_resources.append(ConfigResource(resource_name=name, resource_type=kind))
            yield ITEM_BYTES
    return response
