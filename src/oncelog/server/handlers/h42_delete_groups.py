"""DeleteGroups (42), v0-2. A group with offsets pending in a transaction is not empty (KAFKA-19163)."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise, gather
from oncelog.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, one_by_one


def handle(
    broker: Broker, request: DeleteGroupsRequest, context: RequestContext
) -> Steps[Promise[DeleteGroupsResponse]]:
    names = dict.fromkeys(request.groups_names)
    deleted = yield from one_by_one(lambda name: _delete(broker, context, name), names)
    return gather(deleted).map(lambda results: DeleteGroupsResponse(results=results))


def _delete(broker: Broker, context: RequestContext, name: str) -> Promise[DeletableGroupResult]:
    if not context.permits(Operation.DELETE, Resource.GROUP, name):
        refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return Promise.resolved(DeletableGroupResult(group_id=name, error_code=refused))

    def tell(result: DeletableGroupResult) -> DeletableGroupResult:
        if result.error_code == ErrorCode.NONE:
            context.tell_change("GROUP", name, "deleted")
        return result

    return broker.groups.delete(name).map(tell)
