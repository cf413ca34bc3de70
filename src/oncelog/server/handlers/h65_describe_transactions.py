"""DescribeTransactions (65), v0 (KIP-664)."""

from __future__ import annotations

from oncelog.core.errors import KafkaError
from oncelog.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, one_by_one


def handle(
    broker: Broker, request: DescribeTransactionsRequest, context: RequestContext
) -> Steps[DescribeTransactionsResponse]:
    ids = dict.fromkeys(request.transactional_ids)
    states = yield from one_by_one(lambda transactional_id: _describe(broker, context, transactional_id), ids)
    return DescribeTransactionsResponse(transaction_states=states)


def _describe(broker: Broker, context: RequestContext, transactional_id: str) -> TransactionState:
    try:
        context.require(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id)
        found = broker.transactions.shard_of(transactional_id).describe(transactional_id)
    except KafkaError as error:
        return TransactionState(error_code=error.code, transactional_id=transactional_id)
    found.topics = [topic for topic in found.topics if context.may(Operation.DESCRIBE, Resource.TOPIC, topic.topic)]
    return found
