"""LeaveGroup (13), v0-5: one member up to v2, several from v3 on."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext

_SEVERAL_MEMBERS_VERSION = 3


def handle(
    broker: Broker, request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse | Promise[LeaveGroupResponse]:
    if not context.permits(Operation.READ, Resource.GROUP, request.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    several = context.api_version >= _SEVERAL_MEMBERS_VERSION
    if not several:
        request.members = [MemberIdentity(member_id=request.member_id)]
    answer = broker.groups.run(
        request.group_id,
        lambda shard, reply, now_ms: shard.membership.leave(request, reply, now_ms),
        lambda error: LeaveGroupResponse(error_code=error),
    )
    return answer if several else answer.map(_of_one)


def _of_one(response: LeaveGroupResponse) -> LeaveGroupResponse:
    """The error of the only member is that of the answer."""
    for member in response.members:
        response.error_code = response.error_code or member.error_code
    return response
