"""IncrementalAlterConfigs (44), v0-1: sets, deletes, appends to or subtracts from single settings."""

from __future__ import annotations

from collections import Counter

from oncelog.core.errors import ErrorCode, KafkaError
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
from oncelog.server.turns import Steps, one_by_one


def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> Steps[Promise[IncrementalAlterConfigsResponse]]:
    counts = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    results = yield from one_by_one(
        lambda resource: _answer(broker, context, resource, request.validate_only, counts),
        {(resource.resource_type, resource.resource_name): resource for resource in request.resources}.values(),
    )
    return gather(results).map(lambda responses: IncrementalAlterConfigsResponse(responses=responses))


def _answer(
    broker: Broker,
    context: RequestContext,
    resource: AlterConfigsResource,
    validate_only: bool,
    counts: Counter[tuple[int, str]],
) -> Promise[AlterConfigsResourceResponse]:
    kind, name = resource.resource_type, resource.resource_name
    if counts[kind, name] > 1:
        return Promise.resolved(_result(kind, name, config_resources.named_twice()))
    operations = [(config.name, config.config_operation, config.value) for config in resource.configs]
    changed = config_resources.change(broker, context, kind, name, operations, validate_only)
    return changed.map(lambda error: _result(kind, name, error))


def _result(kind: int, name: str, error: KafkaError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error.code if error else ErrorCode.NONE,
        error_message=error.message if error else None,
        resource_type=kind,
        resource_name=name,
    )
