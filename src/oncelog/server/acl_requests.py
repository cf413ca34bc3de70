"""ACLs and filters of them as requests write them: in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.security.acl import ANY, Acl, AclAuthorizer, AclFilter, Operation, Pattern, Permission, Resource

if TYPE_CHECKING:
    from oncelog.protocol.messages.create_acls import AclCreation
    from oncelog.server.broker import Broker
    from oncelog.server.context import RequestContext

E = TypeVar("E", bound=IntEnum)


class FilterFields(Protocol):
    """Of DescribeAclsRequest and DeleteAclsFilter."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def require_acls(broker: Broker) -> AclAuthorizer:
    """Raises SECURITY_DISABLED if nobody would look at ACLs."""
    if broker.acls is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured: see authorizer.class.name.")
    return broker.acls


def acl_of(creation: AclCreation) -> Acl:
    """Raises KafkaError for one that cannot be added."""
    acl = Acl(
        _member(Resource, creation.resource_type, "resource type"),
        creation.resource_name,
        _member(Pattern, creation.resource_pattern_type, "pattern type"),
        creation.principal,
        creation.host,
        _member(Operation, creation.operation, "operation"),
        _member(Permission, creation.permission_type, "permission type"),
    )
    problem = acl.problem()
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid ACL creation: {problem}.")
    return acl


def tell_of_acls(context: RequestContext, acls: Iterable[Acl], done: str) -> None:
    for acl in acls:
        context.tell_change(acl.resource.name, acl.name, f"{done} {acl}")


def filter_of(fields: FilterFields) -> AclFilter:
    return AclFilter(
        _member_or_any(Resource, fields.resource_type_filter, "resource type"),
        fields.resource_name_filter,
        _member(Pattern, fields.pattern_type_filter, "pattern type"),
        fields.principal_filter,
        fields.host_filter,
        _member_or_any(Operation, fields.operation, "operation"),
        _member_or_any(Permission, fields.permission_type, "permission type"),
    )


def _member(kind: type[E], number: int, what: str) -> E:
    try:
        return kind(number)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no {what} {number} for an ACL.") from None


def _member_or_any(kind: type[IntEnum], number: int, what: str) -> int:
    return number if number == ANY else _member(kind, number, what)
