"""CreateDelegationToken (38), v1-3: refused."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.delegation_tokens import NO_TIME_MS, refusal


def handle(
    broker: Broker, request: CreateDelegationTokenRequest, context: RequestContext
) -> CreateDelegationTokenResponse:
    code, requester = refusal(context), context.peer.principal
    kind, _, name = requester.partition(":")
    owner = requester
    if request.owner_principal_name:
        owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
    is_known = code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    if is_known and owner != requester and not context.permits(Operation.CREATE_TOKENS, Resource.USER, owner):
        code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    time_ms = 0 if code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED else NO_TIME_MS
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=(request.owner_principal_type or "") if request.owner_principal_name else kind,
        principal_name=request.owner_principal_name or name,
        token_requester_principal_type=kind,
        token_requester_principal_name=name,
        issue_timestamp_ms=time_ms,
        expiry_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
    )
