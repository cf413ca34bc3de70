"""CreateAcls (30) and DeleteAcls (31), and ACLs as requests and records write them: in numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Final, Protocol, TypedDict, TypeVar
from uuid import UUID

from oncelog.controller.decision import Deciding, Decision
from oncelog.controller.view import View
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.cluster_metadata import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from oncelog.protocol.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from oncelog.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from oncelog.protocol.schema import Message
from oncelog.security.acl import ANY, Acl, AclFilter, Operation, Pattern, Permission, Resource

FILTERS_MAX: Final = 100
"""Each is held against all ACLs at once, so that what is deleted is what was found."""
CREATIONS_MAX: Final = 10_000
"""As in Kafka."""

E = TypeVar("E", bound=IntEnum)


class FilterFields(Protocol):
    """What DescribeAclsRequest and DeleteAclsFilter have in common."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


class AclFields(TypedDict):
    """What AccessControlEntryRecord and DeleteAclsMatchingAcl have in common."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


def create_acls(view: View, request: CreateAclsRequest, new_uuid: Callable[[], UUID]) -> Deciding:
    if len(request.creations) > CREATIONS_MAX:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"At most {CREATIONS_MAX} ACLs are created at a time.")
    present = set(_known(view).values())
    records: list[Message] = []
    results = []
    for creation in request.creations:
        yield
        try:
            acl = acl_of(creation)
            if acl not in present:
                present.add(acl)
                records.append(acl_record(acl, new_uuid()))
            results.append(created(None))
        except KafkaError as error:
            results.append(created(error))
    return Decision(records, CreateAclsResponse(results=results))


def delete_acls(view: View, request: DeleteAclsRequest) -> Deciding:
    if len(request.filters) > FILTERS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"At most {FILTERS_MAX} filters are served at a time.")
    gone: dict[UUID, None] = {}
    results = []
    known = _known(view)
    for fields in request.filters:
        yield
        try:
            wanted = filter_of(fields)
        except KafkaError as error:
            results.append(not_deleted(error))
            continue
        found = {acl_id: acl for acl_id, acl in known.items() if wanted.matches(acl)}
        gone |= dict.fromkeys(found)
        results.append(deleted(list(found.values())))
    records = [RemoveAccessControlEntryRecord(id=acl_id) for acl_id in gone]
    return Decision(records, DeleteAclsResponse(filter_results=results))


def _known(view: View) -> dict[UUID, Acl]:
    """The ACLs without those of kinds that only a newer Kafka knows: they have no name here."""
    known = {}
    for acl_id, record in view.image.acls.items():
        with suppress(KafkaError):
            known[acl_id] = acl_of_record(record)
    return known


def acl_of(creation: AclCreation) -> Acl:
    """Raises KafkaError for one that cannot be added."""
    acl = _acl(creation, creation.resource_pattern_type)
    problem = acl.problem()
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid ACL creation: {problem}.")
    return acl


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


def acl_of_record(record: AccessControlEntryRecord | DeleteAclsMatchingAcl) -> Acl:
    """Raises KafkaError for numbers that are not known here."""
    return _acl(record, record.pattern_type)


def _acl(fields: AclCreation | AccessControlEntryRecord | DeleteAclsMatchingAcl, pattern: int) -> Acl:
    return Acl(
        _member(Resource, fields.resource_type, "resource type"),
        fields.resource_name,
        _member(Pattern, pattern, "pattern type"),
        fields.principal,
        fields.host,
        _member(Operation, fields.operation, "operation"),
        _member(Permission, fields.permission_type, "permission type"),
    )


def acl_record(acl: Acl, acl_id: UUID) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(id=acl_id, **_fields(acl))


def _fields(acl: Acl) -> AclFields:
    return AclFields(
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def created(error: KafkaError | None) -> AclCreationResult:
    if error is None:
        return AclCreationResult(error_code=ErrorCode.NONE, error_message=None)
    return AclCreationResult(error_code=error.code, error_message=error.message)


def not_deleted(error: KafkaError) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=error.code, error_message=error.message)


def deleted(acls: list[Acl]) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(
        error_code=ErrorCode.NONE,
        error_message=None,
        matching_acls=[DeleteAclsMatchingAcl(error_message=None, **_fields(acl)) for acl in acls],
    )


def _member(kind: type[E], number: int, what: str) -> E:
    try:
        return kind(number)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no {what} {number} for an ACL.") from None


def _member_or_any(kind: type[IntEnum], number: int, what: str) -> int:
    return number if number == ANY else _member(kind, number, what)
