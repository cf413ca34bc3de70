"""SaslHandshake (17), v0-1, where nobody is to log in: on a listener without SASL, or in a session without an end.

A login itself never comes here: see `login`.
"""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(broker: Broker, request: SaslHandshakeRequest, context: RequestContext) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
