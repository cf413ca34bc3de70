"""Heartbeat (12), v0-4."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(
    broker: Broker, request: HeartbeatRequest, context: RequestContext
) -> HeartbeatResponse | Promise[HeartbeatResponse]:
    if not context.permits(Operation.READ, Resource.GROUP, request.group_id):
        return HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return broker.groups.run(
        request.group_id,
        lambda shard, reply, now_ms: shard.membership.heartbeat(request, reply, now_ms),
        # A member must not give up its partitions because its coordinator has just started: Kafka answers the same.
        lambda error: HeartbeatResponse(),
    )
