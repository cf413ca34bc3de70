"""AddOffsetsToTxn (25), v0-4: adds the partition of `__consumer_offsets` that holds a group. TV0/1 clients only."""

from __future__ import annotations

from oncelog.coordinator.txn.errors import error_for_version
from oncelog.coordinator.txn.results import PartitionsResult
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import GROUP_METADATA_TOPIC, ProducerIdAndEpoch, TopicPartition
from oncelog.core.promise import Promise
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext


def handle(
    broker: Broker, request: AddOffsetsToTxnRequest, context: RequestContext
) -> Promise[AddOffsetsToTxnResponse]:
    try:
        context.require(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id)
        context.require(Operation.READ, Resource.GROUP, request.group_id)
    except KafkaError as error:
        return Promise.resolved(AddOffsetsToTxnResponse(error_code=error.code))
    return broker.groups.shards.available().chain(lambda _: _add(broker, request, context))


def _add(broker: Broker, request: AddOffsetsToTxnRequest, context: RequestContext) -> Promise[AddOffsetsToTxnResponse]:
    partition = TopicPartition(GROUP_METADATA_TOPIC, broker.groups.partition_of(request.group_id))
    answer = broker.transactions.run(
        request.transactional_id,
        lambda shard: shard.add_partitions(
            request.transactional_id,
            ProducerIdAndEpoch.of(request.producer_id, request.producer_epoch),
            [partition],
            TransactionVersion.TV0,
            broker.steady_ms(),
        ),
    )

    def respond(result: PartitionsResult) -> AddOffsetsToTxnResponse:
        code = result.partitions.get(partition, result.error)
        if code is not ErrorCode.NONE:
            broker.log_refusal("AddOffsetsToTxn", code, result.reason)
        return AddOffsetsToTxnResponse(
            error_code=error_for_version(ApiKey.ADD_OFFSETS_TO_TXN, context.api_version, code)
        )

    return answer.map(respond)
