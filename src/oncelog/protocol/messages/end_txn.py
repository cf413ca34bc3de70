"""EndTxn (26): commit or abort. v5 answers with the producer id and epoch of the next transaction (KIP-890)."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, boolean, int16, int32, int64, string


class EndTxnRequest(Message, api=ApiKey.END_TXN):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Message, api=ApiKey.END_TXN):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(since=5, default=-1)
    producer_epoch: int = int16(since=5, default=-1)
