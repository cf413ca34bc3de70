"""What a coordinator replays of its log when it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster.partition import Partition
from oncelog.coordinator.outcome import CoordinatorRecord
from oncelog.core.ids import NO_SEQUENCE, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from oncelog.server.shard_log import LOAD_SLICE_RECORDS, append_records, replay_log
from tests.unit.server.harness import BrokerInProcess

PRODUCER = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(0))


class Seen:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_record(self, header: Any, offset: int, key: bytes, value: bytes | None) -> None:
        self.events.append((offset, key, value))

    def on_marker(self, header: Any, marker: Any) -> None:
        self.events.append("commit" if marker.is_commit else "abort")


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    node = BrokerInProcess(tmp_path)
    node.create("log")
    return node.broker.partitions.get("log", 0)


def append(partition: Partition, *records: tuple[bytes, bytes | None], producer: Any = None) -> None:
    guard = None
    if producer is not None:
        state = partition.log.producer_state
        guard = state.start_verification(*producer, NO_SEQUENCE, supports_epoch_bump=True, now_ms=1)
    written = [CoordinatorRecord(*record) for record in records]
    append_records(partition, written, now_ms=1, producer=producer, guard=guard)


def replayed(partition: Partition) -> tuple[list[Any], int]:
    seen = Seen()
    slices = sum(1 for _ in replay_log(partition, seen))
    return seen.events, slices


def test_superseded_records_are_left_out_and_the_rest_stays_in_order(partition: Partition) -> None:
    append(partition, (b"a", b"1"), (b"b", b"1"))
    append(partition, (b"c", b"1"))
    append(partition, (b"a", b"2"), (b"b", None))
    assert replayed(partition) == ([(2, b"c", b"1"), (3, b"a", b"2"), (4, b"b", None)], 0)


def test_nothing_is_left_out_for_a_record_of_a_transaction(partition: Partition) -> None:
    append(partition, (b"a", b"before"))
    append(partition, (b"a", b"inside"), producer=PRODUCER)
    append(partition, (b"a", b"between"))
    partition.append_marker(
        commit=False, producer_id=7, producer_epoch=0, coordinator_epoch=0, transaction_version=0, now_ms=1
    )
    append(partition, (b"a", b"after"))
    events, _ = replayed(partition)
    assert events == [(0, b"a", b"before"), (1, b"a", b"inside"), (2, b"a", b"between"), "abort", (4, b"a", b"after")]


def test_a_long_log_is_replayed_in_slices(partition: Partition) -> None:
    for number in range(2 * LOAD_SLICE_RECORDS // 100 + 1):
        append(partition, *((b"%d" % key, b"%d" % number) for key in range(100)))
    events, slices = replayed(partition)
    assert slices == 2
    assert [value for _, key, value in events if key == b"5"] == [b"49", b"99", b"100"]
