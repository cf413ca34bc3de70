"""CreateAcls (30), v1-3. To make one that exists is no error; one that is wrong keeps no other from being made."""

from __future__ import annotations

from oncelog.cluster.journal import JournalEntry
from oncelog.cluster.metadata_entries import acls_entry
from oncelog.controller.acl_changes import acl_of, check_creation_count, created
from oncelog.core.errors import KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from oncelog.security.acl import Acl
from oncelog.server.acl_requests import require_acls, tell_of_acls
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, in_steps


def handle(
    broker: Broker, request: CreateAclsRequest, context: RequestContext
) -> Steps[CreateAclsResponse | Promise[CreateAclsResponse]]:
    try:
        context.require(Operation.ALTER, Resource.CLUSTER)
        require_acls(broker)
        check_creation_count(request)
    except KafkaError as error:
        return CreateAclsResponse(results=[created(error)] * len(request.creations))
    checked = yield from in_steps(_checked(creation) for creation in request.creations)
    wanted = [each for each in checked if isinstance(each, Acl)]
    new: list[Acl] = []

    def decide() -> JournalEntry | None:
        new.extend(acl for acl in dict.fromkeys(wanted) if acl not in broker.metadata.acls)
        return acls_entry(new) if new else None

    def answer(error: KafkaError | None) -> Steps[CreateAclsResponse]:
        if error is None:
            yield from tell_of_acls(context, new, "added")
        results = yield from in_steps(created(each if isinstance(each, KafkaError) else error) for each in checked)
        return CreateAclsResponse(results=results)

    # A promise of HANG_UP is the dispatcher's to deal with.
    return broker.metadata.propose("acls", decide).chain(
        lambda error: broker.turns.begin(answer(error), context.peer, to_the_end=True)
    )


def _checked(creation: AclCreation) -> Acl | KafkaError:
    try:
        return acl_of(creation)
    except KafkaError as error:
        return error
