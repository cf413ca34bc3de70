"""DescribeGroups (15), v0-6. Before v6 an unknown group is simply Dead; from v6 on it has an error of its own."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext

_NOT_FOUND_VERSION = 6


def handle(broker: Broker, request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponse:
    groups = [_describe(broker, group, context) for group in request.groups]
    if request.include_authorized_operations:
        for group in groups:
            group.authorized_operations = context.operations_on(Resource.GROUP, group.group_id)
    return DescribeGroupsResponse(groups=groups)


def _describe(broker: Broker, group_id: str, context: RequestContext) -> DescribedGroup:
    try:
        context.require(Operation.DESCRIBE, Resource.GROUP, group_id)
        group = broker.groups.shard_of(group_id).describe_group(group_id)
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    unknown_to_client = group.error is ErrorCode.GROUP_ID_NOT_FOUND and context.api_version < _NOT_FOUND_VERSION
    return DescribedGroup(
        error_code=ErrorCode.NONE if unknown_to_client else group.error,
        error_message=group.error_message,
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
    )
