"""ListGroups (16), v0-5."""

from __future__ import annotations

from oncelog.core.errors import KafkaError
from oncelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, in_steps


def handle(broker: Broker, request: ListGroupsRequest, context: RequestContext) -> Steps[ListGroupsResponse]:
    states = yield from in_steps(state.strip().lower() for state in request.states_filter)
    try:
        groups = yield from broker.groups.list_groups(states, request.types_filter)
    except KafkaError as error:
        return ListGroupsResponse(error_code=error.code)
    if not context.may(Operation.DESCRIBE, Resource.CLUSTER):
        seen = (group for group in groups if context.may(Operation.DESCRIBE, Resource.GROUP, group.group_id))
        groups = yield from in_steps(seen)
    return ListGroupsResponse(groups=groups)
