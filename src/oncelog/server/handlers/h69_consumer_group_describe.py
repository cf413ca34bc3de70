"""ConsumerGroupDescribe (69), v0-1: refused, as by a Kafka with `group.coordinator.rebalance.protocols=classic`.

Clients then ask DescribeGroups.
"""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, one_by_one


def handle(
    broker: Broker, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> Steps[ConsumerGroupDescribeResponse]:
    def described(group_id: str) -> DescribedGroup:
        is_allowed = context.permits(Operation.DESCRIBE, Resource.GROUP, group_id)
        code = ErrorCode.UNSUPPORTED_VERSION if is_allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED
        return DescribedGroup(group_id=group_id, error_code=code)

    groups = yield from one_by_one(described, dict.fromkeys(request.group_ids))
    return ConsumerGroupDescribeResponse(groups=groups)
