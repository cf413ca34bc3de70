"""DeleteAcls (31), v1-3: deletes what matches the filters. The answer has the deleted ACLs by filter."""

from __future__ import annotations

from oncelog.cluster.journal import JournalEntry
from oncelog.cluster.metadata_entries import acls_entry
from oncelog.controller.acl_changes import check_filter_count, deleted, filter_of, not_deleted
from oncelog.core.errors import KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from oncelog.security.acl import Acl, AclFilter
from oncelog.server.acl_requests import require_acls, tell_of_acls
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps


def handle(broker: Broker, request: DeleteAclsRequest, context: RequestContext) -> Promise[DeleteAclsResponse]:
    try:
        context.require(Operation.ALTER, Resource.CLUSTER)
        require_acls(broker)
        check_filter_count(request)
    except KafkaError as error:
        return Promise.resolved(DeleteAclsResponse(filter_results=[not_deleted(error)] * len(request.filters)))
    checked = [_checked(wanted) for wanted in request.filters]
    matching: list[list[Acl]] = []
    gone: list[Acl] = []

    def decide() -> JournalEntry | None:
        for wanted in checked:
            found = filter(wanted.matches, broker.metadata.acls) if isinstance(wanted, AclFilter) else ()
            matching.append(list(found))
        gone.extend(dict.fromkeys(acl for acls in matching for acl in acls))
        return acls_entry([], gone) if gone else None

    def answer(error: KafkaError | None) -> Steps[DeleteAclsResponse]:
        if error is None:
            yield from tell_of_acls(context, gone, "deleted")
        failed = [wanted if isinstance(wanted, KafkaError) else error for wanted in checked]
        results = [
            deleted(acls) if failure is None else not_deleted(failure)
            for failure, acls in zip(failed, matching or [[] for _ in checked], strict=True)
        ]
        return DeleteAclsResponse(filter_results=results)

    # A promise of HANG_UP is the dispatcher's to deal with.
    return broker.metadata.propose("acls", decide).chain(
        lambda error: broker.turns.begin(answer(error), context.peer, to_the_end=True)
    )


def _checked(wanted: DeleteAclsFilter) -> AclFilter | KafkaError:
    try:
        return filter_of(wanted)
    except KafkaError as error:
        return error
