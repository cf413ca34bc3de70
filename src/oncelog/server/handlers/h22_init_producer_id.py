"""InitProducerId (22), v0-5; v6 (KIP-939) with `transaction.two.phase.commit.enable`.

Over an open transaction Kafka starts the abort, answers CONCURRENT_TRANSACTIONS and waits for the retry; here the
request waits for the abort and is answered with what the retry would have got.
"""

from __future__ import annotations

from oncelog.coordinator.txn.errors import error_for_version
from oncelog.coordinator.txn.init_producer_id import expected_identity, idempotent_producer
from oncelog.coordinator.txn.results import InitProducerIdResult
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse | Promise[InitProducerIdResponse]:
    version = context.api_version
    try:
        _authorize(request, context)
        expected = expected_identity(request.producer_id, request.producer_epoch)
        if request.transactional_id:
            broker.transactions.check_room(request.transactional_id)
    except KafkaError as error:
        return _respond(broker, InitProducerIdResult.failed(error.code, error.message), version)
    transactional_id = request.transactional_id
    if transactional_id is None:
        ids = broker.producer_ids
        return ids.available().map(lambda _: _respond(broker, idempotent_producer(ids.take), version))
    answer = broker.transactions.run(
        transactional_id,
        lambda shard: shard.init_producer_id(
            transactional_id,
            request.transaction_timeout_ms,
            expected,
            request.enable2_pc,
            request.keep_prepared_txn,
            broker.steady_ms(),
        ),
    )
    return answer.map(lambda result: _respond(broker, result, version))


def _authorize(request: InitProducerIdRequest, context: RequestContext) -> None:
    if request.transactional_id is not None:
        context.require(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id)
        if request.enable2_pc:
            context.require(Operation.TWO_PHASE_COMMIT, Resource.TRANSACTIONAL_ID, request.transactional_id)
    elif not context.may_any(Operation.WRITE, Resource.TOPIC):
        context.require(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER)


def _respond(broker: Broker, result: InitProducerIdResult, version: int) -> InitProducerIdResponse:
    if result.error is not ErrorCode.NONE:
        broker.log_refusal("InitProducerId", result.error, result.reason)
        return InitProducerIdResponse(
            error_code=error_for_version(ApiKey.INIT_PRODUCER_ID, version, result.error),
            producer_id=-1,
            producer_epoch=-1,
        )
    return InitProducerIdResponse(
        producer_id=result.identity.producer_id,
        producer_epoch=result.identity.epoch,
        ongoing_txn_producer_id=result.ongoing.producer_id,
        ongoing_txn_producer_epoch=result.ongoing.epoch,
    )
