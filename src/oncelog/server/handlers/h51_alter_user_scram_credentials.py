"""AlterUserScramCredentials (51), v0: one answer per user; what is right of a request is done, all of it or nothing."""

from __future__ import annotations

from oncelog.cluster.journal import JournalEntry
from oncelog.cluster.metadata_entries import ScramUser, users_entry
from oncelog.controller.scram_changes import check_change_count, checked_changes, no_such_credential, scram_answer
from oncelog.core.errors import KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from oncelog.security.scram import ScramCredential
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, in_steps


def handle(
    broker: Broker, request: AlterUserScramCredentialsRequest, context: RequestContext
) -> Steps[AlterUserScramCredentialsResponse | Promise[AlterUserScramCredentialsResponse]]:
    try:
        context.require(Operation.ALTER, Resource.CLUSTER)
        check_change_count(request)
    except KafkaError as error:
        names = yield from in_steps(change.name for change in request.deletions)
        names += yield from in_steps(change.name for change in request.upsertions)
        return scram_answer(dict.fromkeys(names, error))
    checked = yield from in_steps(checked_changes(request))

    results: dict[str, KafkaError | None] = {}
    given: dict[ScramUser, ScramCredential] = {}
    removed: list[ScramUser] = []

    def decide() -> JournalEntry | None:
        for name, change in checked:
            results[name] = None
            if isinstance(change, KafkaError):
                results[name] = change
                continue
            user = ScramUser(name, change.mechanism)
            if change.credential is not None:
                given[user] = change.credential
            elif user in broker.metadata.users:
                removed.append(user)
            else:
                results[name] = no_such_credential()
        return users_entry(given, removed) if given or removed else None

    def answer(error: KafkaError | None) -> Steps[AlterUserScramCredentialsResponse]:
        if error is None:
            yield from _tell(context, given, removed)
        return scram_answer({name: result or error for name, result in results.items()})

    # A promise of HANG_UP is the dispatcher's to deal with.
    return broker.metadata.propose("users", decide).chain(
        lambda error: broker.turns.begin(answer(error), context.peer, to_the_end=True)
    )


def _tell(context: RequestContext, given: dict[ScramUser, ScramCredential], removed: list[ScramUser]) -> Steps[None]:
    for user in given:
        yield
        context.tell_change("USER", user.name, f"set its {user.mechanism.sasl_name} credential")
    for user in removed:
        yield
        context.tell_change("USER", user.name, f"deleted its {user.mechanism.sasl_name} credential")
