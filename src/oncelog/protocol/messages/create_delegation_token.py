"""CreateDelegationToken (38): a token by which others may log in as its owner."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, byte_string, int16, int32, int64, string


class CreatableRenewers(Message):
    principal_type: str = string()
    principal_name: str = string()


class CreateDelegationTokenRequest(Message, api=ApiKey.CREATE_DELEGATION_TOKEN):
    owner_principal_type: str | None = string(since=3, nullable=True)
    owner_principal_name: str | None = string(since=3, nullable=True)
    renewers: list[CreatableRenewers] = array(CreatableRenewers)
    max_lifetime_ms: int = int64()


class CreateDelegationTokenResponse(Message, api=ApiKey.CREATE_DELEGATION_TOKEN):
    error_code: int = int16()
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(since=3)
    token_requester_principal_name: str = string(since=3)
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: bytes = byte_string()
    throttle_time_ms: int = int32()
