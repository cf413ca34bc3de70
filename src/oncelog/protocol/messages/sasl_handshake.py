"""SaslHandshake (17): choose a mechanism. v1 puts the exchange into SaslAuthenticate requests."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, string


class SaslHandshakeRequest(Message, api=ApiKey.SASL_HANDSHAKE):
    mechanism: str = string()


class SaslHandshakeResponse(Message, api=ApiKey.SASL_HANDSHAKE):
    error_code: int = int16()
    mechanisms: list[str] = array(string)
