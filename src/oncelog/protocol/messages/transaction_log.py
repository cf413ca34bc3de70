"""What `__transaction_state` holds: one record per change of a transactional id, null to forget it.

Keys and values go through `encode_versioned`. Value v0 is written while `transaction.version` is 0; v1 is flexible, so
that later fields can be tags which older readers skip. `transaction_partitions` is null in state Empty.
"""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int8, int16, int32, int64, string


class TransactionLogKey(Message, versions=(0, 0)):
    transactional_id: str = string()


class PartitionsSchema(Message):
    topic: str = string()
    partition_ids: list[int] = array(int32)


class TransactionLogValue(Message, versions=(0, 1), flexible=1):
    producer_id: int = int64()
    previous_producer_id: int = int64(since=1, default=-1, tag=0)
    next_producer_id: int = int64(since=1, default=-1, tag=1)
    producer_epoch: int = int16()
    next_producer_epoch: int = int16(since=1, default=-1, tag=3)
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable=True)
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(since=1, tag=2)
