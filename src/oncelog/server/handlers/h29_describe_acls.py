"""DescribeAcls (29), v1-3: the ACLs that match a filter, by resource."""

from __future__ import annotations

from itertools import groupby

from oncelog.controller.acl_changes import filter_of
from oncelog.core.errors import KafkaError
from oncelog.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from oncelog.server.authorization import Operation, Resource, acls_are_disabled
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(broker: Broker, request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    try:
        context.require(Operation.DESCRIBE, Resource.CLUSTER)
        if broker.acls is None:
            raise acls_are_disabled()
        wanted = filter_of(request)
    except KafkaError as error:
        return DescribeAclsResponse(error_code=error.code, error_message=error.message)
    found = sorted(acl for acl in broker.acls if wanted.matches(acl))
    return DescribeAclsResponse(
        error_message=None,
        resources=[
            DescribeAclsResource(
                resource_type=resource,
                resource_name=name,
                pattern_type=pattern,
                acls=[
                    AclDescription(
                        principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
                    )
                    for acl in members
                ],
            )
            for (resource, name, pattern), members in groupby(found, key=lambda acl: acl[:3])
        ],
    )
