"""LeaveGroup (13), v0-5: one member up to v2, several from v3 on."""

from __future__ import annotations

from oncelog.coordinator.group.requests import LeaveRequest, LeaveResult, LeavingMember
from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext

_SEVERAL_MEMBERS_VERSION = 3


def handle(
    broker: Broker, request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse | Promise[LeaveGroupResponse]:
    if not context.may(Operation.READ, Resource.GROUP, request.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    several = context.api_version >= _SEVERAL_MEMBERS_VERSION
    if several:
        members = tuple(
            LeavingMember(member.member_id, member.group_instance_id, member.reason) for member in request.members
        )
    else:
        members = (LeavingMember(request.member_id),)
    leave = LeaveRequest(group_id=request.group_id, members=members)
    answer = broker.groups.run(
        request.group_id,
        lambda shard, reply, now_ms: shard.leave(leave, reply, now_ms),
        lambda error: LeaveResult(error=error),
    )
    return answer.map(lambda result: _respond(result, several))


def _respond(result: LeaveResult, several: bool) -> LeaveGroupResponse:
    error = result.error
    if not several and not error and result.members:
        error = result.members[0].error
    return LeaveGroupResponse(
        error_code=error,
        members=[
            MemberResponse(
                member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=member.error
            )
            for member in result.members
        ],
    )
