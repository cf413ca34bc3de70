"""Envelope (58): a broker passes the request of a client on to the controller, with who sent it.

Request and response are carried with their headers.
"""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, byte_string, int16


class EnvelopeRequest(Message, api=ApiKey.ENVELOPE):
    request_data: bytes = byte_string()
    request_principal: bytes | None = byte_string(nullable=True)
    client_host_address: bytes = byte_string()


class EnvelopeResponse(Message, api=ApiKey.ENVELOPE):
    response_data: bytes | None = byte_string(nullable=True, default=None)
    error_code: int = int16()
