"""AlterUserScramCredentials (51): one answer per user; what is right of a request is done, all of it or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

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


def alter_credentials(view: View, request: AlterUserScramCredentialsRequest) -> Deciding:
    changes: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
    if len(changes) > CHANGES_MAX:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"At most {CHANGES_MAX} credentials are changed at a time.")
    counts = Counter(change.name for change in changes)
    records: list[Message] = []
    results: dict[str, KafkaError | None] = {}
    for name, change in {change.name: change for change in changes}.items():
        yield
        try:
            if counts[name] > 1:
                text = "A user credential cannot be altered twice in the same request"
                raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, text)
            records.append(_changed(view, change))
            results[name] = None
        except KafkaError as error:
            results[name] = error
    return Decision(records, scram_answer(results))


def _changed(view: View, change: ScramCredentialDeletion | ScramCredentialUpsertion) -> Message:
    """Raises KafkaError."""
    if not change.name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    try:
        mechanism = ScramMechanism(change.mechanism)
    except ValueError:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism") from None
    if isinstance(change, ScramCredentialDeletion):
        if ScramCredentialKey(change.name, mechanism) not in view.image.scram:
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=mechanism)
    if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        text = f"Iterations must be between {ITERATIONS_MIN} and {ITERATIONS_MAX}"
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
    if not change.salt or not change.salted_password:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salt or the salted password is empty")
    salted, salt = bytes(change.salted_password), bytes(change.salt)
    credential = credential_of_salted(mechanism, salted, salt, change.iterations)
    return scram_record(ScramUser(change.name, mechanism), credential)


def scram_record(user: ScramUser, credential: ScramCredential) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=user.name,
        mechanism=user.mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


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
