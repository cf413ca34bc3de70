"""DescribeDelegationToken (41): the tokens of owners, null meaning all."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, byte_string, int16, int32, int64, string


class DescribeDelegationTokenOwner(Message):
    principal_type: str = string()
    principal_name: str = string()


class DescribeDelegationTokenRequest(Message, api=ApiKey.DESCRIBE_DELEGATION_TOKEN):
    owners: list[DescribeDelegationTokenOwner] | None = array(DescribeDelegationTokenOwner, nullable=True)


class DescribedDelegationTokenRenewer(Message):
    principal_type: str = string()
    principal_name: str = string()


class DescribedDelegationToken(Message):
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(since=3)
    token_requester_principal_name: str = string(since=3)
    issue_timestamp: int = int64()
    expiry_timestamp: int = int64()
    max_timestamp: int = int64()
    token_id: str = string()
    hmac: bytes = byte_string()
    renewers: list[DescribedDelegationTokenRenewer] = array(DescribedDelegationTokenRenewer)


class DescribeDelegationTokenResponse(Message, api=ApiKey.DESCRIBE_DELEGATION_TOKEN):
    error_code: int = int16()
    tokens: list[DescribedDelegationToken] = array(DescribedDelegationToken)
    throttle_time_ms: int = int32()
