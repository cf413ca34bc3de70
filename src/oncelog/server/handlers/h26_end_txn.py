"""EndTxn (26), v0-5. The answer leaves when the decision is committed, before the markers are written."""

from __future__ import annotations

from oncelog.coordinator.txn.errors import error_for_version
from oncelog.coordinator.txn.results import EndTxnResult
from oncelog.coordinator.txn.versions import version_of_end_txn
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import ProducerIdAndEpoch
from oncelog.core.promise import Promise
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(broker: Broker, request: EndTxnRequest, context: RequestContext) -> Promise[EndTxnResponse]:
    version = context.api_version
    if not context.permits(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
        refused = EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return Promise.resolved(refused)
    answer = broker.transactions.run(
        request.transactional_id,
        lambda shard: shard.end_txn(
            request.transactional_id,
            ProducerIdAndEpoch.of(request.producer_id, request.producer_epoch),
            request.committed,
            version_of_end_txn(version),
            broker.steady_ms(),
        ),
    )

    def respond(result: EndTxnResult) -> EndTxnResponse:
        if result.error is not ErrorCode.NONE:
            broker.log_refusal("EndTxn", result.error, result.reason)
            return EndTxnResponse(error_code=error_for_version(ApiKey.END_TXN, version, result.error))
        return EndTxnResponse(producer_id=result.identity.producer_id, producer_epoch=result.identity.epoch)

    return answer.map(respond)
