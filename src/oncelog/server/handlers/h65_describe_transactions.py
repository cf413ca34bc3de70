"""DescribeTransactions (65), v0 (KIP-664)."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(
    broker: Broker, request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            _describe(broker, context, transactional_id) for transactional_id in request.transactional_ids
        ]
    )


def _describe(broker: Broker, context: RequestContext, transactional_id: str) -> TransactionState:
    if not context.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id):
        refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return TransactionState(error_code=refused, transactional_id=transactional_id)
    found = broker.transactions.shard_of(transactional_id).describe(transactional_id)
    if found.error:
        return TransactionState(error_code=found.error, transactional_id=transactional_id)
    topics: dict[str, list[int]] = {}
    for partition in sorted(found.partitions):
        if not context.may(Operation.DESCRIBE, Resource.TOPIC, partition.topic):
            continue
        topics.setdefault(partition.topic, []).append(partition.partition)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[TopicData(topic=topic, partitions=partitions) for topic, partitions in topics.items()],
    )
