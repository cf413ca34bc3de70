"""WriteTxnMarkers (27), v1-2: markers from a coordinator, or from an operator who aborts a hanging transaction.

Deviation: Kafka serves it to whoever may ALTER the cluster, too. No coordinator is asked, so that whoever may send it
can commit or abort a transaction of anybody: here it takes CLUSTER_ACTION.
"""

from __future__ import annotations

from collections.abc import Iterator

from oncelog.coordinator.txn.effects import SendMarkers
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import CoordinatorEpoch, ProducerEpoch, ProducerId, TopicPartition
from oncelog.core.promise import Promise, gather
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import ITEM_BYTES, Steps, in_steps, one_by_one

Written = tuple[TopicPartition, ErrorCode]
_RESULTS_PER_STEP = 200


def handle(
    broker: Broker, request: WriteTxnMarkersRequest, context: RequestContext
) -> Steps[Promise[WriteTxnMarkersResponse]]:
    if not context.permits(Operation.CLUSTER_ACTION, Resource.CLUSTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        broker.log_refusal("WriteTxnMarkers", code, "it takes ClusterAction: see oncelog.cluster.action.enable")
        refused = []
        for marker in request.markers:
            written = yield from in_steps((partition, code) for partition in _partitions(marker))
            refused.append((yield from _result(marker.producer_id, written)))
            yield
        return Promise.resolved(WriteTxnMarkersResponse(markers=refused))
    for marker in request.markers if not broker.is_in_cluster else ():  # there coordinators send many of them
        yield
        end = "commit" if marker.transaction_result else "abort"
        context.tell_change(
            "PRODUCER",
            str(marker.producer_id),
            f"{end} its transaction on {sum(len(topic.partition_indexes) for topic in marker.topics)} partition(s)",
        )
    promises: list[Promise[WritableTxnMarkerResult]] = []
    for marker in request.markers:
        promises.append((yield from _write(broker, context, marker)))
        yield
    return gather(promises).map(lambda results: WriteTxnMarkersResponse(markers=results))


def _partitions(wanted: WritableTxnMarker) -> Iterator[TopicPartition]:
    return (TopicPartition(topic.name, index) for topic in wanted.topics for index in topic.partition_indexes)


def _write(
    broker: Broker, context: RequestContext, wanted: WritableTxnMarker
) -> Steps[Promise[WritableTxnMarkerResult]]:
    partitions = yield from in_steps(_partitions(wanted))
    order = SendMarkers(
        transactional_id="",
        producer_id=ProducerId(wanted.producer_id),
        producer_epoch=ProducerEpoch(wanted.producer_epoch),
        coordinator_epoch=CoordinatorEpoch(wanted.coordinator_epoch),
        commit=wanted.transaction_result,
        partitions=frozenset(partitions),
        transaction_version=wanted.transaction_version,
    )
    written = yield from one_by_one(lambda partition: _write_one(broker, order, partition), partitions)
    return gather(written).chain(
        lambda results: broker.turns.begin(_result(wanted.producer_id, results), context.peer, to_the_end=True)
    )


def _write_one(broker: Broker, order: SendMarkers, partition: TopicPartition) -> Promise[Written]:
    promise: Promise[Written] = Promise()
    broker.markers.write(order, partition, lambda code: promise.resolve((partition, code)))
    return promise


def _result(producer_id: int, written: list[Written]) -> Steps[WritableTxnMarkerResult]:
    topics: dict[str, WritableTxnMarkerTopicResult] = {}
    for number, (partition, code) in enumerate(written, start=1):
        if number % _RESULTS_PER_STEP == 0:
            yield _RESULTS_PER_STEP * ITEM_BYTES
        topic = topics.setdefault(partition.topic, WritableTxnMarkerTopicResult(name=partition.topic))
        topic.partitions.append(WritableTxnMarkerPartitionResult(partition_index=partition.partition, error_code=code))
    return WritableTxnMarkerResult(producer_id=producer_id, topics=list(topics.values()))
