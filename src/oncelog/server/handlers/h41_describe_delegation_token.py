"""DescribeDelegationToken (41), v1-3: refused."""

from __future__ import annotations

from oncelog.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.delegation_tokens import refusal


def handle(
    broker: Broker, request: DescribeDelegationTokenRequest, context: RequestContext
) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=refusal(context))
