"""SaslHandshake (17): choose a mechanism. v1 puts the exchange into SaslAuthenticate requests."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int16, string


class SaslHandshakeRequest(Message, api=17, versions=(0, 1)):
    mechanism: str = string()


class SaslHandshakeResponse(Message, api=17, versions=(0, 1)):
    error_code: int = int16()
    mechanisms: list[str] = array(string)
