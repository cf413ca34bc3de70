"""LeaveGroup (13), v0-5: one member up to v2, several from v3 on."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise, gather
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps

_SEVERAL_MEMBERS_VERSION = 3
_MEMBERS_PER_PART = 500


def handle(
    broker: Broker, request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse | Promise[LeaveGroupResponse] | Steps[Promise[LeaveGroupResponse]]:
    if not context.permits(Operation.READ, Resource.GROUP, request.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    several = context.api_version >= _SEVERAL_MEMBERS_VERSION
    if not several:
        request.members = [MemberIdentity(member_id=request.member_id)]
    if len(request.members) > _MEMBERS_PER_PART:
        return _leave_in_parts(broker, request)
    answer = _leave(broker, request)
    return answer if several else answer.map(_of_one)


def _leave(broker: Broker, request: LeaveGroupRequest) -> Promise[LeaveGroupResponse]:
    return broker.groups.run(
        request.group_id,
        lambda shard, reply, now_ms: shard.membership.leave(request, reply, now_ms),
        lambda error: LeaveGroupResponse(error_code=error),
    )


def _leave_in_parts(broker: Broker, request: LeaveGroupRequest) -> Steps[Promise[LeaveGroupResponse]]:
    """Each member has a result of its own, so the protocol allows it."""
    parts: list[Promise[LeaveGroupResponse]] = []
    for first in range(0, len(request.members), _MEMBERS_PER_PART):
        members = request.members[first : first + _MEMBERS_PER_PART]
        parts.append(_leave(broker, LeaveGroupRequest(group_id=request.group_id, members=members)))
        yield
    return gather(parts).map(_joined)


def _joined(parts: list[LeaveGroupResponse]) -> LeaveGroupResponse:
    """If the group has an error in one of the parts, that is the error of the whole answer."""
    error = next((part.error_code for part in parts if part.error_code), ErrorCode.NONE)
    members = [] if error else [member for part in parts for member in part.members]
    return LeaveGroupResponse(error_code=error, members=members)


def _of_one(response: LeaveGroupResponse) -> LeaveGroupResponse:
    """The error of the only member is that of the answer."""
    for member in response.members:
        response.error_code = response.error_code or member.error_code
    return response
