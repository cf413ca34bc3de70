"""DescribeGroups (15), v0-6. Before v6 an unknown group is simply Dead; from v6 on it has an error of its own."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, one_by_one

_NOT_FOUND_VERSION = 6


def handle(broker: Broker, request: DescribeGroupsRequest, context: RequestContext) -> Steps[DescribeGroupsResponse]:
    # A small request must not get a huge answer by asking for the same group again and again.
    names = dict.fromkeys(request.groups)
    groups = yield from one_by_one(lambda name: _describe(broker, name, context), names)
    if request.include_authorized_operations:
        for group in groups:
            yield
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = context.operations_on(Resource.GROUP, group.group_id)
    return DescribeGroupsResponse(groups=groups)


def _describe(broker: Broker, group_id: str, context: RequestContext) -> DescribedGroup:
    try:
        context.require(Operation.DESCRIBE, Resource.GROUP, group_id)
        group = broker.groups.shard_of(group_id).describe_group(group_id)
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND and context.api_version < _NOT_FOUND_VERSION:
        group.error_code = ErrorCode.NONE
    return group
