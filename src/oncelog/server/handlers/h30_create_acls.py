"""CreateAcls (30), v1-3. To make one that exists is no error; one that is wrong keeps no other from being made."""

from __future__ import annotations

from oncelog.cluster.journal import JournalEntry
from oncelog.cluster.metadata_entries import acls_entry
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from oncelog.security.acl import Acl
from oncelog.server.acl_requests import acl_of, require_acls, tell_of_acls
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(broker: Broker, request: CreateAclsRequest, context: RequestContext) -> Promise[CreateAclsResponse]:
    try:
        context.require(Operation.ALTER, Resource.CLUSTER)
        require_acls(broker)
    except KafkaError as error:
        return Promise.resolved(CreateAclsResponse(results=[_result(error) for _ in request.creations]))
    checked = [_checked(creation) for creation in request.creations]
    wanted = [each for each in checked if isinstance(each, Acl)]
    new: list[Acl] = []

    def decide() -> JournalEntry | None:
        new.extend(acl for acl in dict.fromkeys(wanted) if acl not in broker.metadata.acls)
        return acls_entry(new) if new else None

    def answer(error: KafkaError | None) -> CreateAclsResponse:
        if error is None:
            tell_of_acls(context, new, "added")
        return CreateAclsResponse(
            results=[_result(each if isinstance(each, KafkaError) else error) for each in checked]
        )

    return broker.metadata.propose("acls", decide).map(answer)


def _checked(creation: AclCreation) -> Acl | KafkaError:
    try:
        return acl_of(creation)
    except KafkaError as error:
        return error


def _result(error: KafkaError | None) -> AclCreationResult:
    if error is None:
        return AclCreationResult(error_code=ErrorCode.NONE, error_message=None)
    return AclCreationResult(error_code=error.code, error_message=error.message)
