"""SyncGroup (14), v0-5. From v5 on protocol type and name are required."""

from __future__ import annotations

from oncelog.coordinator.group.requests import SyncRequest, SyncResult
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
    if not context.may(Operation.READ, Resource.GROUP, request.group_id):
        return SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    has_protocol = request.protocol_type is not None and request.protocol_name is not None
    if context.api_version >= _PROTOCOL_REQUIRED_VERSION and not has_protocol:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    sync = SyncRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={entry.member_id: bytes(entry.assignment) for entry in request.assignments},
    )
    answer = broker.groups.run(
        request.group_id,
        lambda shard, reply, now_ms: shard.sync(sync, reply, now_ms),
        # What a member was about to be given is in nobody's memory any more: it is to join again.
        lambda error: SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS),
    )
    return answer.map(
        lambda result: SyncGroupResponse(
            error_code=result.error,
            protocol_type=result.protocol_type,
            protocol_name=result.protocol_name,
            assignment=result.assignment,
        )
    )
