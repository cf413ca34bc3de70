"""SyncGroup (14), v0-5. From v5 on protocol type and name are required."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext

_PROTOCOL_REQUIRED_VERSION = 5


def handle(
    broker: Broker, request: SyncGroupRequest, context: RequestContext
) -> SyncGroupResponse | Promise[SyncGroupResponse]:
    if not context.permits(Operation.READ, Resource.GROUP, request.group_id):
        return SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    has_protocol = request.protocol_type is not None and request.protocol_name is not None
    if context.api_version >= _PROTOCOL_REQUIRED_VERSION and not has_protocol:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return broker.groups.run(
        request.group_id,
        lambda shard, reply, now_ms: shard.membership.sync(request, reply, now_ms),
        # What a member was about to be given is in nobody's memory any more: it is to join again.
        lambda error: SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS),
    )
