"""UnregisterBroker (64): the cluster forgets a broker that does not come back."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, int16, int32, string


class UnregisterBrokerRequest(Message, api=ApiKey.UNREGISTER_BROKER):
    broker_id: int = int32()


class UnregisterBrokerResponse(Message, api=ApiKey.UNREGISTER_BROKER):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
