"""ExpireDelegationToken (40), v1-2: refused."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.delegation_tokens import NO_TIME_MS, refusal


def handle(
    broker: Broker, request: ExpireDelegationTokenRequest, context: RequestContext
) -> ExpireDelegationTokenResponse:
    code = refusal(context)
    time_ms = NO_TIME_MS if code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED else 0
    return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=time_ms)
