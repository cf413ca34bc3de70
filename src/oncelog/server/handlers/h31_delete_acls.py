"""DeleteAcls (31), v1-3: deletes what matches the filters. The answer has the deleted ACLs by filter."""

from __future__ import annotations

from typing import Final

from oncelog.cluster.journal import JournalEntry
from oncelog.cluster.metadata_entries import acls_entry
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from oncelog.security.acl import Acl, AclFilter
from oncelog.server.acl_requests import filter_of, require_acls, tell_of_acls
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext

FILTERS_MAX: Final = 100
"""Each is held against all ACLs at once, so that what is deleted is what was found."""


def handle(broker: Broker, request: DeleteAclsRequest, context: RequestContext) -> Promise[DeleteAclsResponse]:
    try:
        context.require(Operation.ALTER, Resource.CLUSTER)
        require_acls(broker)
        if len(request.filters) > FILTERS_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"At most {FILTERS_MAX} filters are served at a time.")
    except KafkaError as error:
        return Promise.resolved(DeleteAclsResponse(filter_results=[_failed(error) for _ in request.filters]))
    checked = [_checked(wanted) for wanted in request.filters]
    matching: list[list[Acl]] = []
    gone: list[Acl] = []

    def decide() -> JournalEntry | None:
        for wanted in checked:
            found = filter(wanted.matches, broker.metadata.acls) if isinstance(wanted, AclFilter) else ()
            matching.append(list(found))
        gone.extend(dict.fromkeys(acl for acls in matching for acl in acls))
        return acls_entry([], gone) if gone else None

    def answer(error: KafkaError | None) -> DeleteAclsResponse:
        if error is None:
            tell_of_acls(context, gone, "deleted")
        failed = [wanted if isinstance(wanted, KafkaError) else error for wanted in checked]
        results = [
            _deleted(acls) if failure is None else _failed(failure)
            for failure, acls in zip(failed, matching or [[] for _ in checked], strict=True)
        ]
        return DeleteAclsResponse(filter_results=results)

    return broker.metadata.propose("acls", decide).map(answer)


def _checked(wanted: DeleteAclsFilter) -> AclFilter | KafkaError:
    try:
        return filter_of(wanted)
    except KafkaError as error:
        return error


def _failed(error: KafkaError) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=error.code, error_message=error.message)


def _deleted(acls: list[Acl]) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(
        error_code=ErrorCode.NONE,
        error_message=None,
        matching_acls=[
            DeleteAclsMatchingAcl(
                error_message=None,
                resource_type=acl.resource,
                resource_name=acl.name,
                pattern_type=acl.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ],
    )
