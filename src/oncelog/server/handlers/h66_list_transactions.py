"""ListTransactions (66), v0-2 (KIP-664; by age KIP-994; by pattern KIP-1152)."""

from __future__ import annotations

from oncelog.coordinator.txn.listing import TransactionFilter
from oncelog.core.errors import KafkaError
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, in_steps


def handle(
    broker: Broker, request: ListTransactionsRequest, context: RequestContext
) -> Steps[ListTransactionsResponse]:
    try:
        wanted = TransactionFilter.of(
            request.state_filters,
            request.producer_id_filters,
            request.duration_filter,
            request.transactional_id_pattern,
        )
        found = yield from broker.transactions.list_transactions(wanted)
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    seen = yield from in_steps(
        entry for entry in found if context.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, entry.transactional_id)
    )
    return ListTransactionsResponse(unknown_state_filters=list(wanted.unknown_states), transaction_states=seen)
