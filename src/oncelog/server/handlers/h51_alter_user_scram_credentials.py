"""AlterUserScramCredentials (51), v0: one answer per user; what is right of a request is done, all of it or nothing."""

from __future__ import annotations

from collections import Counter

from oncelog.cluster.journal import JournalEntry
from oncelog.cluster.metadata_entries import ScramUser, users_entry
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from oncelog.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of_salted,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext

_Results = dict[str, KafkaError | None]


def handle(
    broker: Broker, request: AlterUserScramCredentialsRequest, context: RequestContext
) -> Promise[AlterUserScramCredentialsResponse]:
    changes: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
    names = Counter(change.name for change in changes)
    results: _Results = dict.fromkeys(names)
    try:
        context.require(Operation.ALTER, Resource.CLUSTER)
    except KafkaError as error:
        return Promise.resolved(_answer(dict.fromkeys(names, error)))

    given: dict[ScramUser, ScramCredential] = {}
    removed: list[ScramUser] = []

    def decide() -> JournalEntry | None:
        for change in changes:
            try:
                if names[change.name] > 1:
                    raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, "The user is named more than once.")
                user = ScramUser(_checked_name(change.name), _mechanism(change.mechanism))
                if isinstance(change, ScramCredentialUpsertion):
                    given[user] = _credential(user, change)
                elif user in broker.metadata.users:
                    removed.append(user)
                else:
                    text = "Attempt to delete a user credential that does not exist"
                    raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)
            except KafkaError as error:
                results[change.name] = error
        return users_entry(given, removed) if given or removed else None

    def answer(error: KafkaError | None) -> AlterUserScramCredentialsResponse:
        if error is None:
            _tell(context, given, removed)
        return _answer({name: result or error for name, result in results.items()})

    return broker.metadata.propose("users", decide).map(answer)


def _checked_name(name: str) -> str:
    if not name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    return name


def _mechanism(number: int) -> ScramMechanism:
    try:
        return ScramMechanism(number)
    except ValueError:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism") from None


def _credential(user: ScramUser, given: ScramCredentialUpsertion) -> ScramCredential:
    if not ITERATIONS_MIN <= given.iterations <= ITERATIONS_MAX:
        text = f"Iterations must be between {ITERATIONS_MIN} and {ITERATIONS_MAX}"
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
    if not given.salt or not given.salted_password:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salt or the salted password is empty")
    return credential_of_salted(user.mechanism, bytes(given.salted_password), bytes(given.salt), given.iterations)


def _tell(context: RequestContext, given: dict[ScramUser, ScramCredential], removed: list[ScramUser]) -> None:
    for user in given:
        context.tell_change("USER", user.name, f"set its {user.mechanism.sasl_name} credential")
    for user in removed:
        context.tell_change("USER", user.name, f"deleted its {user.mechanism.sasl_name} credential")


def _answer(results: _Results) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=name,
                error_code=error.code if error else ErrorCode.NONE,
                error_message=error.message if error else None,
            )
            for name, error in results.items()
        ]
    )
