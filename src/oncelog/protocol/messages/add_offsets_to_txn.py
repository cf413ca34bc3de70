"""AddOffsetsToTxn (25): a transaction is about to commit offsets of a group."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, int16, int32, int64, string


class AddOffsetsToTxnRequest(Message, api=ApiKey.ADD_OFFSETS_TO_TXN):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Message, api=ApiKey.ADD_OFFSETS_TO_TXN):
    throttle_time_ms: int = int32()
    error_code: int = int16()
