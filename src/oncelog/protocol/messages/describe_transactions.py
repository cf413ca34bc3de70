"""DescribeTransactions (65): state of transactional ids at their coordinator."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, int32, int64, string


class DescribeTransactionsRequest(Message, api=ApiKey.DESCRIBE_TRANSACTIONS):
    transactional_ids: list[str] = array(string)


class TopicData(Message):
    topic: str = string()
    partitions: list[int] = array(int32)


class TransactionState(Message):
    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicData] = array(TopicData)


class DescribeTransactionsResponse(Message, api=ApiKey.DESCRIBE_TRANSACTIONS):
    throttle_time_ms: int = int32()
    transaction_states: list[TransactionState] = array(TransactionState)
