"""Transactions over several brokers: markers for partitions that others lead, and coordinators that are elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from oncelog.coordinator.txn.effects import SendMarkers
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NodeId, ProducerIdAndEpoch, TopicPartition
from oncelog.core.invariant import invariant
from oncelog.core.promise import Promise
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from oncelog.protocol.schema import Message
from oncelog.server.peers import Answer

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

_TIMEOUT_MS: Final = 30_000
_ASK_AGAIN_MS: Final = 20
_ASK_AGAIN_MS_MAX: Final = 100
"""Kafka's pauses between two requests for an id that is between two transactions."""

Written = Mapping[tuple[int, TopicPartition], ErrorCode]
"""By producer id and partition."""


def write_markers(
    broker: Broker, node: NodeId, orders: Mapping[SendMarkers, Iterable[TopicPartition]]
) -> Promise[Written | KafkaError]:
    request = WriteTxnMarkersRequest(markers=[_marker(order, partitions) for order, partitions in orders.items()])
    return _call(broker, node, "markers", request).map(_written)


def _call(broker: Broker, node: NodeId, purpose: str, request: Message) -> Promise[Answer]:
    replication = broker.replication
    invariant(replication is not None, "one node has no other brokers to call")
    if replication is None:
        raise RuntimeError(purpose)
    return replication.call(node, purpose, request, _TIMEOUT_MS)


def _marker(order: SendMarkers, partitions: Iterable[TopicPartition]) -> WritableTxnMarker:
    topics: dict[str, WritableTxnMarkerTopic] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, WritableTxnMarkerTopic(name=topic)).partition_indexes.append(index)
    return WritableTxnMarker(
        producer_id=order.producer_id,
        producer_epoch=order.producer_epoch,
        transaction_result=order.commit,
        topics=list(topics.values()),
        coordinator_epoch=order.coordinator_epoch,
        transaction_version=order.transaction_version,
    )


def _written(answer: Answer) -> Written | KafkaError:
    if not isinstance(answer, WriteTxnMarkersResponse):
        return answer if isinstance(answer, KafkaError) else KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(answer))
    return {
        (marker.producer_id, TopicPartition(topic.name, result.partition_index)): ErrorCode(result.error_code)
        for marker in answer.markers
        for topic in marker.topics
        for result in topic.partitions
    }


def enlist(
    broker: Broker,
    coordinator: NodeId,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: list[TopicPartition],
    *,
    add: bool,
) -> Promise[dict[TopicPartition, KafkaError]]:
    """As `TxnRuntime.enlist`, with the coordinator on another broker.

    It does not park the request, since all producers of this broker share one connection to it: this side asks again.
    """
    transaction = _transaction(transactional_id, producer, partitions, add=add)
    request = AddPartitionsToTxnRequest(transactions=[transaction])
    promise: Promise[dict[TopicPartition, KafkaError]] = Promise()
    end_ms = broker.steady_ms() + broker.settings.integer("oncelog.parked.request.ms")

    def ask(pause_ms: int) -> None:
        _call(broker, coordinator, "transactions", request).then(lambda answer: answered(answer, pause_ms))

    def answered(answer: Answer, pause_ms: int) -> None:
        refused = _refusals_of(answer, partitions)
        is_settling = any(error.code is ErrorCode.CONCURRENT_TRANSACTIONS for error in refused.values())
        if not is_settling or broker.stopped or broker.steady_ms() + pause_ms > end_ms:
            promise.resolve(refused)
        else:
            broker.scheduler.call_later_ms(pause_ms, lambda: ask(min(2 * pause_ms, _ASK_AGAIN_MS_MAX)))

    ask(_ASK_AGAIN_MS)
    return promise


def _transaction(
    transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition], *, add: bool
) -> AddPartitionsToTxnTransaction:
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for topic, index in partitions:
        topics.setdefault(topic, AddPartitionsToTxnTopic(name=topic)).partitions.append(index)
    return AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=not add,
        topics=list(topics.values()),
    )


def _refusals_of(answer: Answer, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KafkaError]:
    """What another broker's coordinator refuses. Without an answer nothing may be written."""
    if not isinstance(answer, AddPartitionsToTxnResponse):
        error = KafkaError(ErrorCode.NETWORK_EXCEPTION, f"the coordinator did not answer: {answer}")
        return dict.fromkeys(partitions, error)
    if answer.error_code != ErrorCode.NONE:
        return dict.fromkeys(partitions, KafkaError(ErrorCode(answer.error_code), "refused by the coordinator"))
    codes = {
        TopicPartition(topic.name, found.partition_index): ErrorCode(found.partition_error_code)
        for result in answer.results_by_transaction
        for topic in result.topic_results
        for found in topic.results_by_partition
    }
    found = {partition: codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR) for partition in partitions}
    return {
        partition: KafkaError(code, "refused by the coordinator")
        for partition, code in found.items()
        if code is not ErrorCode.NONE
    }
