"""DeleteGroups (42), v0-2. A group with offsets pending in a transaction is not empty (KAFKA-19163)."""

from __future__ import annotations

from oncelog.coordinator.group.requests import DeletedGroup, DeleteGroupsResult
from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise, gather
from oncelog.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(broker: Broker, request: DeleteGroupsRequest, context: RequestContext) -> Promise[DeleteGroupsResponse]:
    names = list(dict.fromkeys(request.groups_names))
    return gather([_delete(broker, context, name) for name in names]).map(
        lambda results: DeleteGroupsResponse(
            results=[
                DeletableGroupResult(group_id=group.group_id, error_code=group.error)
                for result in results
                for group in result.groups
            ]
        )
    )


def _delete(broker: Broker, context: RequestContext, name: str) -> Promise[DeleteGroupsResult]:
    if not context.may(Operation.DELETE, Resource.GROUP, name):
        refused = DeletedGroup(name, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return Promise.resolved(DeleteGroupsResult(groups=(refused,)))
    return broker.groups.run(
        name,
        lambda shard, reply, now_ms: shard.delete_groups([name], reply),
        lambda error: DeleteGroupsResult(groups=(DeletedGroup(name, error),)),
    )
