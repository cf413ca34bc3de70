"""SaslAuthenticate (36): one step of an exchange. v1 tells how long the session lasts."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, byte_string, int16, int64, string


class SaslAuthenticateRequest(Message, api=ApiKey.SASL_AUTHENTICATE):
    auth_bytes: bytes = byte_string()


class SaslAuthenticateResponse(Message, api=ApiKey.SASL_AUTHENTICATE):
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    auth_bytes: bytes = byte_string()
    session_lifetime_ms: int = int64(since=1)
