"""AddPartitionsToTxn (24), v0-5: v0-3 from clients, one transaction; v4-5 between brokers, several, or verification."""

from __future__ import annotations

from oncelog.coordinator.txn.errors import error_for_version
from oncelog.coordinator.txn.machine import TxnShard
from oncelog.coordinator.txn.outcome import TxnOutcome
from oncelog.coordinator.txn.results import PartitionsResult
from oncelog.coordinator.txn.versions import version_of_add_partitions
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import ProducerIdAndEpoch, TopicPartition
from oncelog.core.promise import Promise, gather
from oncelog.core.steps import at_once
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import ITEM_BYTES, Steps

_BROKER_VERSION = 4
_PARTITIONS_PER_STEP = 500


def handle(
    broker: Broker, request: AddPartitionsToTxnRequest, context: RequestContext
) -> Steps[Promise[AddPartitionsToTxnResponse]]:
    version = context.api_version
    if version >= _BROKER_VERSION:
        if not context.permits(Operation.CLUSTER_ACTION, Resource.CLUSTER):
            refused = AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return Promise.resolved(refused)
        added: list[Promise[AddPartitionsToTxnResult]] = []
        for each in request.transactions:
            added.append((yield from _add(broker, context, each)))
            yield ITEM_BYTES
        return gather(added).map(lambda results: AddPartitionsToTxnResponse(results_by_transaction=results))
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    own = yield from _add(broker, context, transaction)
    return own.map(lambda result: AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results))


def _add(
    broker: Broker, context: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> Steps[Promise[AddPartitionsToTxnResult]]:
    version, transactional_id = context.api_version, transaction.transactional_id
    wanted: list[TopicPartition] = []
    refused: dict[TopicPartition, ErrorCode] = {}
    for topic in transaction.topics:
        for first in range(0, len(topic.partitions), _PARTITIONS_PER_STEP):
            if wanted:
                yield _PARTITIONS_PER_STEP * ITEM_BYTES
            indexes = topic.partitions[first : first + _PARTITIONS_PER_STEP]
            part = [TopicPartition(topic.name, index) for index in indexes]
            wanted += part
            refused |= _refused(broker, context, transactional_id, part)
    if refused:
        # All or nothing: one bad partition, and none is added.
        codes: dict[TopicPartition, ErrorCode] = {}
        for first in range(0, len(wanted), _PARTITIONS_PER_STEP):
            part = wanted[first : first + _PARTITIONS_PER_STEP]
            codes |= {entry: refused.get(entry, ErrorCode.OPERATION_NOT_ATTEMPTED) for entry in part}
            yield
        return Promise.resolved((yield from _result(transactional_id, codes)))
    producer = ProducerIdAndEpoch.of(transaction.producer_id, transaction.producer_epoch)

    def operation(shard: TxnShard) -> TxnOutcome[PartitionsResult]:
        if transaction.verify_only:
            return shard.verify_partitions(transactional_id, producer, wanted)
        client_version = version_of_add_partitions(version)
        return shard.add_partitions(transactional_id, producer, wanted, client_version, broker.steady_ms())

    def respond(result: PartitionsResult) -> AddPartitionsToTxnResult:
        if result.error is not ErrorCode.NONE:
            broker.log_refusal("AddPartitionsToTxn", result.error, result.reason)
        codes = {
            entry: error_for_version(ApiKey.ADD_PARTITIONS_TO_TXN, version, result.partitions.get(entry, result.error))
            for entry in wanted
        }
        return at_once(_result(transactional_id, codes))

    # The broker that asks asks for all its producers over one connection: nobody waits there for somebody else's id.
    parks = version < _BROKER_VERSION
    return broker.transactions.run(transactional_id, operation, parks=parks).map(respond)


def _refused(
    broker: Broker, context: RequestContext, transactional_id: str, wanted: list[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Other brokers were checked already, and ask on behalf of clients that they have checked."""
    if context.api_version < _BROKER_VERSION:
        if not context.permits(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id):
            return dict.fromkeys(wanted, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        forbidden = {entry for entry in wanted if not context.permits(Operation.WRITE, Resource.TOPIC, entry.topic)}
    else:
        forbidden = set()
    unknown = [entry for entry in wanted if entry not in forbidden and not broker.metadata.has_partition(*entry)]
    return {
        **dict.fromkeys(forbidden, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        **dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    }


def _result(transactional_id: str, codes: dict[TopicPartition, ErrorCode]) -> Steps[AddPartitionsToTxnResult]:
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for number, (entry, code) in enumerate(codes.items()):
        if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
            yield _PARTITIONS_PER_STEP * ITEM_BYTES
        topic = topics.setdefault(entry.topic, AddPartitionsToTxnTopicResult(name=entry.topic))
        topic.results_by_partition.append(
            AddPartitionsToTxnPartitionResult(partition_index=entry.partition, partition_error_code=code)
        )
    return AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=list(topics.values()))
