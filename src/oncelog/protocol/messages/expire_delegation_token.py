"""ExpireDelegationToken (40): let a token end sooner."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, byte_string, int16, int32, int64


class ExpireDelegationTokenRequest(Message, api=ApiKey.EXPIRE_DELEGATION_TOKEN):
    hmac: bytes = byte_string()
    expiry_time_period_ms: int = int64()


class ExpireDelegationTokenResponse(Message, api=ApiKey.EXPIRE_DELEGATION_TOKEN):
    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()
