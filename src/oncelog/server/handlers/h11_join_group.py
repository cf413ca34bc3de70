"""JoinGroup (11), v0-9."""

from __future__ import annotations

from oncelog.coordinator.group.joining import JoiningClient
from oncelog.coordinator.group.member import held_bytes_of
from oncelog.coordinator.group.responses import join_refused
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext

_NULLABLE_PROTOCOL_VERSION = 7
_PROTOCOLS_MAX = 1_000
"""A group compares the protocols of all its members."""


def handle(
    broker: Broker, request: JoinGroupRequest, context: RequestContext
) -> JoinGroupResponse | Promise[JoinGroupResponse]:
    if not context.permits(Operation.READ, Resource.GROUP, request.group_id):
        return JoinGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    answer = _join(broker, request, context)
    return answer if context.api_version >= _NULLABLE_PROTOCOL_VERSION else answer.map(_without_null)


def _join(broker: Broker, request: JoinGroupRequest, context: RequestContext) -> Promise[JoinGroupResponse]:
    try:
        if len(request.protocols) > _PROTOCOLS_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"{len(request.protocols)} protocols, at most {_PROTOCOLS_MAX}"
            )
        broker.groups.check_room(request.group_id, held_bytes_of(request, context.client_id))
    except KafkaError as error:
        broker.log_refusal("JoinGroup", error.code, error.message)
        return Promise.resolved(join_refused(error.code, request.member_id))
    client = JoiningClient(context.client_id, f"/{context.peer.client_host}", context.api_version)
    return broker.groups.run(
        request.group_id,
        lambda shard, reply, now_ms: shard.joining.join(request, reply, now_ms, client),
        lambda error: join_refused(error, request.member_id),
    )


def _without_null(response: JoinGroupResponse) -> JoinGroupResponse:
    response.protocol_name = response.protocol_name or ""
    return response
