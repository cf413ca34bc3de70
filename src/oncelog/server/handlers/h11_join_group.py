"""JoinGroup (11), v0-9."""

from __future__ import annotations

from oncelog.coordinator.group.joining import JoiningClient
from oncelog.coordinator.group.responses import join_refused
from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext

_NULLABLE_PROTOCOL_VERSION = 7


def handle(
    broker: Broker, request: JoinGroupRequest, context: RequestContext
) -> JoinGroupResponse | Promise[JoinGroupResponse]:
    if not context.permits(Operation.READ, Resource.GROUP, request.group_id):
        return JoinGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    client = JoiningClient(context.client_id, f"/{context.peer.client_host}", context.api_version)
    answer = broker.groups.run(
        request.group_id,
        lambda shard, reply, now_ms: shard.joining.join(request, reply, now_ms, client),
        lambda error: join_refused(error, request.member_id),
    )
    return answer if context.api_version >= _NULLABLE_PROTOCOL_VERSION else answer.map(_without_null)


def _without_null(response: JoinGroupResponse) -> JoinGroupResponse:
    response.protocol_name = response.protocol_name or ""
    return response
