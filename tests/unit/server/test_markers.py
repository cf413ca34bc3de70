"""Markers of one transaction on several partitions: what is wrong with one of them is no matter of the others."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.cluster.partition import Partition
from oncelog.core.errors import ErrorCode
from oncelog.core.invariant import InvariantError
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from oncelog.server import coordinator_runtime
from oncelog.server.markers import RETRY_MS
from tests.unit.server.conftest import FEW_PARTITIONS
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_transactions import ID, Producer, stable

TOPIC = "orders"
PARTITIONS = range(3)


@pytest.fixture
def producer(node: BrokerInProcess) -> Producer:
    node.create(TOPIC, len(PARTITIONS))
    producer = Producer(node)
    assert producer.init().value.error_code == 0
    return producer


def produce_to_all(producer: Producer) -> None:
    for partition in PARTITIONS:
        assert producer.produce(TOPIC, bytes(5_000), partition=partition).error_code == 0


def state_of(node: BrokerInProcess) -> str:
    answer = node.call(DescribeTransactionsRequest(transactional_ids=[ID]), 0)
    state: str = answer.transaction_states[0].transaction_state
    return state


class FailingAppend:
    """One partition whose append fails as nothing is expected to fail, for as long as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, index: int) -> None:
        self.broken = True
        original = Partition.append_marker

        def append_marker(partition: Partition, **marker: Any) -> Any:
            if self.broken and partition.topic_partition == (TOPIC, index):
                raise InvariantError("a bug")
            return original(partition, **marker)

        monkeypatch.setattr(Partition, "append_marker", append_marker)


@pytest.mark.parametrize("damage", ["changed", "cut"])
@pytest.mark.parametrize("stop", ["clean", "none"])
def test_a_damaged_transaction_index_does_not_keep_a_marker_from_any_partition(
    node: BrokerInProcess, producer: Producer, stop: str, damage: str
) -> None:
    produce_to_all(producer)
    producer.end(commit=False)
    produce_to_all(producer)
    path = next((node.folder / f"{TOPIC}-0").glob("*.txnindex"))
    if stop == "clean":
        node.broker.stop()
    path.write_bytes(b"\x7f" * 34 if damage == "changed" else path.read_bytes()[:20])
    if stop == "clean":
        node.broker = node._new()
    assert producer.end(commit=False).value.error_code == 0
    node.clock.advance_ms(RETRY_MS)
    for partition in PARTITIONS:
        lso, end = stable(node, TOPIC, partition)
        assert lso == end
        aborted = node.broker.partitions.get(TOPIC, partition).log.aborted_transactions(0, end)
        assert [txn.first_offset for txn in aborted] == [0, 2]
    assert state_of(node) == "CompleteAbort"


@pytest.mark.parametrize("index", PARTITIONS)
def test_an_append_that_fails_unexpectedly_is_tried_again_and_the_other_partitions_get_their_marker(
    node: BrokerInProcess, producer: Producer, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    produce_to_all(producer)
    failing = FailingAppend(monkeypatch, index)
    assert producer.end(commit=True).value.error_code == 0
    free = [partition for partition in PARTITIONS if stable(node, TOPIC, partition) == (2, 2)]
    assert free == [partition for partition in PARTITIONS if partition != index]
    failing.broken = False
    node.clock.advance_ms(RETRY_MS)
    assert stable(node, TOPIC, index) == (2, 2)
    assert state_of(node) == "CompleteCommit"


@pytest.mark.parametrize("settings", [{**FEW_PARTITIONS, "oncelog.cluster.action.enable": "true"}])
def test_write_txn_markers_answers_for_each_partition(
    node: BrokerInProcess, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce_to_all(producer)
    FailingAppend(monkeypatch, 1)
    marker = WritableTxnMarker(
        producer_id=producer.pid,
        producer_epoch=producer.epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=TOPIC, partition_indexes=list(PARTITIONS))],
        coordinator_epoch=0,
    )
    answer = node.call(WriteTxnMarkersRequest(markers=[marker]), 1)
    codes = [partition.error_code for partition in answer.markers[0].topics[0].partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE]


def test_one_id_that_cannot_be_aborted_does_not_keep_others_from_timing_out(
    node: BrokerInProcess, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [Producer(node, f"id-{number}", timeout_ms=1_000) for number in range(3)]
    for number, each in enumerate(others):
        assert each.init().value.error_code == 0
        assert each.produce(TOPIC, b"a", partition=number).error_code == 0
    append = coordinator_runtime.append_records
    calls = iter([True])

    def fails_once(*arguments: Any, **options: Any) -> Any:
        if next(calls, False):
            raise InvariantError("a bug")
        return append(*arguments, **options)

    monkeypatch.setattr(coordinator_runtime, "append_records", fails_once)
    node.clock.advance_ms(30_000)
    for partition in PARTITIONS:
        lso, end = stable(node, TOPIC, partition)
        assert lso == end
