"""ConsumerGroupHeartbeat (68), v0-1: refused, as by a Kafka with `group.coordinator.rebalance.protocols=classic`.

A consumer with `group.protocol=consumer` reports an error at once when it gets this answer. If no broker named this
API, librdkafka would wait in silence for one that does. Deviation: Kafka sends no text.
"""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    if not context.permits(Operation.READ, Resource.GROUP, request.group_id):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="This broker has no groups of KIP-848: set group.protocol=classic.",
    )
