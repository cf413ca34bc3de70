"""ListTransactions (66): all transactions of a coordinator; v1 filters by age, v2 by a pattern of ids."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, int32, int64, string


class ListTransactionsRequest(Message, api=ApiKey.LIST_TRANSACTIONS):
    state_filters: list[str] = array(string)
    producer_id_filters: list[int] = array(int64)
    duration_filter: int = int64(since=1, default=-1)
    transactional_id_pattern: str | None = string(since=2, nullable=True, default=None)


class TransactionState(Message):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(Message, api=ApiKey.LIST_TRANSACTIONS):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string)
    transaction_states: list[TransactionState] = array(TransactionState)
