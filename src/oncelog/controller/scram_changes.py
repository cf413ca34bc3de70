"""AlterUserScramCredentials (51): one answer per user; what is right of a request is done, all of it or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from oncelog.controller.decision import Deciding, Decision
from oncelog.controller.image import ScramCredentialKey
from oncelog.controller.view import View
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from oncelog.protocol.messages.cluster_metadata import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from oncelog.protocol.schema import Message
from oncelog.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    ScramUser,
    credential_of_salted,
)

CHANGES_MAX: Final = 10_000
"""They become valid together, while nobody else is served."""


class ScramChange(NamedTuple):
    name: str
    mechanism: ScramMechanism
    credential: ScramCredential | None
    """None: it is to be deleted."""


def alter_credentials(view: View, request: AlterUserScramCredentialsRequest) -> Deciding:
    check_change_count(request)
    records: list[Message] = []
    results: dict[str, KafkaError | None] = {}
    for name, change in checked_changes(request):
        yield
        results[name] = None
        if isinstance(change, KafkaError):
            results[name] = change
        elif change.credential is not None:
            records.append(scram_record(ScramUser(name, change.mechanism), change.credential))
        elif ScramCredentialKey(name, change.mechanism) in view.image.scram:
            records.append(RemoveUserScramCredentialRecord(name=name, mechanism=change.mechanism))
        else:
            results[name] = no_such_credential()
    return Decision(records, scram_answer(results))


def scram_record(user: ScramUser, credential: ScramCredential) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=user.name,
        mechanism=user.mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def check_change_count(request: AlterUserScramCredentialsRequest) -> None:
    if len(request.deletions) + len(request.upsertions) > CHANGES_MAX:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"At most {CHANGES_MAX} credentials are changed at a time.")


def checked_changes(request: AlterUserScramCredentialsRequest) -> Iterator[tuple[str, ScramChange | KafkaError]]:
    changes: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
    counts = Counter(change.name for change in changes)
    once = {change.name: change for change in changes}
    return ((name, _checked(change, is_duplicate=counts[name] > 1)) for name, change in once.items())


def no_such_credential() -> KafkaError:
    return KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")


def _checked(
    change: ScramCredentialDeletion | ScramCredentialUpsertion, *, is_duplicate: bool
) -> ScramChange | KafkaError:
    if is_duplicate:
        text = "A user credential cannot be altered twice in the same request"
        return KafkaError(ErrorCode.DUPLICATE_RESOURCE, text)
    if not change.name:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    try:
        mechanism = ScramMechanism(change.mechanism)
    except ValueError:
        return KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, ScramCredentialDeletion):
        return ScramChange(change.name, mechanism, None)
    if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        text = f"Iterations must be between {ITERATIONS_MIN} and {ITERATIONS_MAX}"
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
    if not change.salt or not change.salted_password:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salt or the salted password is empty")
    salted, salt = bytes(change.salted_password), bytes(change.salt)
    return ScramChange(change.name, mechanism, credential_of_salted(mechanism, salted, salt, change.iterations))


def scram_answer(results: Mapping[str, KafkaError | None]) -> AlterUserScramCredentialsResponse:
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
