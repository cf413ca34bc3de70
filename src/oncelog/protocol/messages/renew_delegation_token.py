"""RenewDelegationToken (39): let a token live longer."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, byte_string, int16, int32, int64


class RenewDelegationTokenRequest(Message, api=ApiKey.RENEW_DELEGATION_TOKEN):
    hmac: bytes = byte_string()
    renew_period_ms: int = int64()


class RenewDelegationTokenResponse(Message, api=ApiKey.RENEW_DELEGATION_TOKEN):
    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()
