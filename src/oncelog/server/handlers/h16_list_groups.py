"""ListGroups (16), v0-5."""

from __future__ import annotations

from oncelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(broker: Broker, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    error, groups = broker.groups.list_groups(request.states_filter, request.types_filter)
    if not context.may(Operation.DESCRIBE, Resource.CLUSTER):
        groups = [group for group in groups if context.may(Operation.DESCRIBE, Resource.GROUP, group.group_id)]
    return ListGroupsResponse(error_code=error, groups=groups)
