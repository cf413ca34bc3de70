"""DescribeClientQuotas (48), v0-1."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from oncelog.security.quotas import CLIENT_ID, IP, USER, Entity
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import ITEM_BYTES, Steps


class Match(IntEnum):
    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


def handle(
    broker: Broker, request: DescribeClientQuotasRequest, context: RequestContext
) -> Steps[DescribeClientQuotasResponse]:
    try:
        context.require(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER)
        matches = _filter(request)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    entries = []
    for entity, quotas in list(broker.metadata.quotas.items()):
        if matches(entity):
            entries.append(
                EntryData(
                    entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                    values=[ValueData(key=key, value=value) for key, value in quotas.items()],
                )
            )
            yield ITEM_BYTES * len(entity)
        else:
            yield
    return DescribeClientQuotasResponse(error_message=None, entries=entries)


def _filter(request: DescribeClientQuotasRequest) -> Callable[[Entity], bool]:
    wanted: dict[str, ComponentData] = {}
    for component in request.components:
        problem = _problem(component, wanted)
        if problem is not None:
            raise problem
        wanted[component.entity_type] = component
    if IP in wanted and len(wanted) > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid entity filter component combination")

    def matches(entity: Entity) -> bool:
        names = dict(entity)
        if not wanted.keys() <= names.keys() or (request.strict and wanted.keys() != names.keys()):
            return False
        return all(_matches(component, names[kind]) for kind, component in wanted.items())

    return matches


def _problem(component: ComponentData, before: dict[str, ComponentData]) -> KafkaError | None:
    kind = component.entity_type
    if not kind:
        return KafkaError(ErrorCode.INVALID_REQUEST, "Unexpected empty entity type")
    if kind in before:
        return KafkaError(ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter")
    if kind not in (USER, CLIENT_ID, IP):
        return KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type {kind} not supported")
    if component.match_type not in tuple(Match):
        return KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")
    if (component.match_type == Match.EXACT) == (component.match is None):
        return KafkaError(ErrorCode.INVALID_REQUEST, f"Match type {component.match_type} and a name do not fit")
    return None


def _matches(component: ComponentData, name: str | None) -> bool:
    if component.match_type == Match.EXACT:
        return name == component.match
    return component.match_type == Match.SPECIFIED or name is None
