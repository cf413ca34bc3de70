"""Delegation tokens, which this broker does not have: the answers of a Kafka without `delegation.token.secret.key`."""

from __future__ import annotations

from typing import Final

from oncelog.core.errors import ErrorCode
from oncelog.server.authorization import ANONYMOUS
from oncelog.server.context import RequestContext

NO_TIME_MS: Final = -1


def refusal(context: RequestContext) -> ErrorCode:
    """Whoever has not logged in is not told whether there are tokens."""
    if context.peer.principal == ANONYMOUS:
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
