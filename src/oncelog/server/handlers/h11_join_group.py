"""JoinGroup (11), v0-9."""

from __future__ import annotations

from oncelog.coordinator.group.requests import JoinProtocol, JoinRequest, JoinResult
from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext

_MEMBER_ID_REQUIRED_VERSION = 4
_NULLABLE_PROTOCOL_VERSION = 7
_SKIP_ASSIGNMENT_VERSION = 9


def handle(
    broker: Broker, request: JoinGroupRequest, context: RequestContext
) -> JoinGroupResponse | Promise[JoinGroupResponse]:
    version = context.api_version
    if not context.may(Operation.READ, Resource.GROUP, request.group_id):
        return JoinGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    join = JoinRequest(
        group_id=request.group_id,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocols=tuple(JoinProtocol(entry.name, bytes(entry.metadata)) for entry in request.protocols),
        client_id=context.client_id,
        client_host=f"/{context.peer.client_host}",
        reason=request.reason,
        requires_known_member_id=version >= _MEMBER_ID_REQUIRED_VERSION,
        supports_skipping_assignment=version >= _SKIP_ASSIGNMENT_VERSION,
    )
    answer = broker.groups.run(
        request.group_id,
        lambda shard, reply, now_ms: shard.join(join, reply, now_ms),
        lambda error: JoinResult(error=error, member_id=request.member_id),
    )
    return answer.map(lambda result: _respond(result, version))


def _respond(result: JoinResult, version: int) -> JoinGroupResponse:
    name = result.protocol_name
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation_id,
        protocol_type=result.protocol_type,
        protocol_name="" if name is None and version < _NULLABLE_PROTOCOL_VERSION else name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata
            )
            for member in result.members
        ],
    )
