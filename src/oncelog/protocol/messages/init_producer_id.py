"""InitProducerId (22): a producer id and epoch; with a transactional id it fences the predecessor.

v3 lets a producer recover with the id and epoch it has. v6 (KIP-939, two-phase commit) is not advertised.
"""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, boolean, int16, int32, int64, string


class InitProducerIdRequest(Message, api=ApiKey.INIT_PRODUCER_ID):
    transactional_id: str | None = string(nullable=True)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(since=3, default=-1)
    producer_epoch: int = int16(since=3, default=-1)
    enable2_pc: bool = boolean(since=6)
    keep_prepared_txn: bool = boolean(since=6)


class InitProducerIdResponse(Message, api=ApiKey.INIT_PRODUCER_ID):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64(since=6, default=-1)
    ongoing_txn_producer_epoch: int = int16(since=6, default=-1)
