"""DescribeUserScramCredentials (50), v0: mechanisms and iterations of users, or of all of them."""

from __future__ import annotations

from collections import Counter

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, one_by_one


def handle(
    broker: Broker, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> Steps[DescribeUserScramCredentialsResponse]:
    try:
        context.require(Operation.DESCRIBE, Resource.CLUSTER)
    except KafkaError as error:
        # As Kafka does it: one for each that was asked for, without its name.
        results = [_failed("", error.code, error.message) for _ in request.users or ()]
        return DescribeUserScramCredentialsResponse(error_code=error.code, error_message=error.message, results=results)
    counts = Counter(user.name for user in request.users or ())
    credentials: dict[str, list[CredentialInfo]] = {}
    for user, credential in sorted(broker.metadata.users.items()):
        info = CredentialInfo(mechanism=user.mechanism, iterations=credential.iterations)
        credentials.setdefault(user.name, []).append(info)
    results = yield from one_by_one(
        lambda name: _describe(name, counts[name], credentials.get(name, [])), counts or credentials
    )
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _describe(name: str, count: int, infos: list[CredentialInfo]) -> DescribeUserScramCredentialsResult:
    if count > 1:
        return _failed(name, ErrorCode.DUPLICATE_RESOURCE, "The user is named more than once.")
    if not infos:
        return _failed(name, ErrorCode.RESOURCE_NOT_FOUND, "There is no such user.")
    return DescribeUserScramCredentialsResult(user=name, error_message=None, credential_infos=infos)


def _failed(name: str, code: ErrorCode, message: str) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)
