"""What a coordinator replays of its log when it starts."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster.partition import Partition
from oncelog.coordinator.outcome import CoordinatorRecord
from oncelog.core.ids import NO_SEQUENCE, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from oncelog.protocol.batch import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, iter_headers
from oncelog.server import shard_log
from oncelog.server.shard_log import (
    LOAD_RETRY_MS,
    LOAD_SLICE_RECORDS,
    append_records,
    load_shard,
    replay_log,
    run_slices,
)
from oncelog.storage import intact_batches, segment_batches
from oncelog.storage.segment import Segment
from tests.unit.server.harness import BrokerInProcess
from tests.virtual_clock import VirtualScheduler

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


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_a_tombstone_is_not_left_out_for_the_record_behind_it(partition: Partition, in_one_batch: bool) -> None:
    """It ends what a transaction has pending for its key, which the record behind it does not."""
    append(partition, (b"a", b"inside"), producer=PRODUCER)
    plain: list[tuple[bytes, bytes | None]] = [(b"a", b"1"), (b"a", None), (b"b", None), (b"a", b"2"), (b"a", b"3")]
    for records in [plain] if in_one_batch else [[record] for record in plain]:
        append(partition, *records)
    events, _ = replayed(partition)
    assert events == [(0, b"a", b"inside"), (3, b"b", None), (2, b"a", None), (5, b"a", b"3")]


def test_a_long_log_is_replayed_in_slices(partition: Partition) -> None:
    for number in range(2 * LOAD_SLICE_RECORDS // 100 + 1):
        append(partition, *((b"%d" % key, b"%d" % number) for key in range(100)))
    events, slices = replayed(partition)
    assert slices == 2
    assert [value for _, key, value in events if key == b"5"] == [b"49", b"99", b"100"]


def damage(partition: Partition, number: int, byte: int, flip: int) -> Callable[[], object]:
    """Flips bits of a byte of one batch, in the file. Gives what undoes it."""
    path = partition.log.segments[0].log_file.path
    whole = path.read_bytes()
    data = bytearray(whole)
    position, _ = list(iter_headers(whole))[number]
    data[position + byte] ^= flip
    path.write_bytes(data)
    return lambda: path.write_bytes(whole)


def test_a_damaged_header_costs_its_own_batch_and_no_other(partition: Partition) -> None:
    for number in range(40):
        append(partition, (b"%d" % number, b"1"))
    others = {b"%d" % number for number in range(40)} - {b"20"}
    for byte in range(HEADER_BYTES):
        for bit in range(8):
            undo = damage(partition, 20, byte, 1 << bit)
            events, _ = replayed(partition)
            assert others <= {event[1] for event in events}, f"bit {bit} of byte {byte}"
            undo()


def test_a_damaged_last_batch_is_left_out(partition: Partition) -> None:
    for number in range(3):
        append(partition, (b"%d" % number, b"1"))
    damage(partition, 2, 8, 0x7F)
    assert replayed(partition) == ([(0, b"0", b"1"), (1, b"1", b"1")], 0)


def test_a_damaged_marker_is_left_out(partition: Partition) -> None:
    append(partition, (b"a", b"inside"), producer=PRODUCER)
    partition.append_marker(
        commit=True, producer_id=7, producer_epoch=0, coordinator_epoch=0, transaction_version=0, now_ms=1
    )
    append(partition, (b"b", b"after"))
    damage(partition, 1, HEADER_BYTES, 0xFF)
    assert replayed(partition) == ([(0, b"a", b"inside"), (2, b"b", b"after")], 0)


@pytest.mark.parametrize("read_bytes", [HEADER_BYTES, 500, intact_batches.SEARCH_BYTES])
@pytest.mark.parametrize("number", [0, 1, 20, 38, 39])
def test_a_damaged_length_costs_one_batch_wherever_a_read_ends(
    partition: Partition, number: int, read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intact_batches, "SEARCH_BYTES", read_bytes)
    monkeypatch.setattr(segment_batches, "WHOLE_CHUNK_BYTES", read_bytes)
    for each in range(40):
        append(partition, (b"%d" % each, b"1"))
    others = [b"%d" % each for each in range(40) if each != number]
    path = partition.log.segments[0].log_file.path
    whole = path.read_bytes()
    position, header = list(iter_headers(whole))[number]
    spans_the_next = 2 * header.batch_length + LENGTH_OVERHEAD_BYTES
    for length in (20, 0, -12, -200, 200, spans_the_next, 0x7F000000):
        path.write_bytes(whole[: position + 8] + length.to_bytes(4, "big", signed=True) + whole[position + 12 :])
        assert [key for _, key, _ in replayed(partition)[0]] == others, length


@pytest.mark.parametrize("byte", [22, 60, HEADER_BYTES + 5, -1])
def test_damage_that_a_reader_would_not_notice_is_said_and_left_out(
    partition: Partition, byte: int, caplog: pytest.LogCaptureFixture
) -> None:
    append(partition, (b"a", b"old"))
    append(partition, (b"a", b"new"))
    append(partition, (b"b", b"1"))
    size = list(iter_headers(partition.log.segments[0].log_file.path.read_bytes()))[1][1].size_bytes
    damage(partition, 1, byte % size, 0x10)
    assert replayed(partition) == ([(0, b"a", b"old"), (2, b"b", b"1")], 0)
    assert "behind offset 0, which is left out" in caplog.text


def test_of_a_file_that_is_too_short_the_rest_is_left_out_up_to_the_next_segment(partition: Partition) -> None:
    append(partition, (b"a", b"1"))
    append(partition, (b"b", b"1"))
    partition.log.roll(now_ms=1)
    append(partition, (b"c", b"1"))
    path = partition.log.segments[0].log_file.path
    path.write_bytes(path.read_bytes()[: -HEADER_BYTES // 2])
    events, _ = replayed(partition)
    assert events[-1] == (2, b"c", b"1")


def test_a_segment_that_is_replaced_meanwhile_is_read_where_the_old_one_was_left(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_log, "LOAD_SLICE_RECORDS", 1)
    monkeypatch.setattr(segment_batches, "WHOLE_CHUNK_BYTES", HEADER_BYTES)
    for number in range(5):
        append(partition, (b"%d" % number, b"1"))
    log = partition.log
    seen = Seen()
    slices = replay_log(partition, seen)
    next(slices)
    next(slices)
    old = log.segments[0]
    log.files.segments[0] = Segment(log.files.place, 0, log.config, size_bytes=old.size_bytes)
    fail_reads(monkeypatch, lambda segment: segment is old)
    assert list(slices)
    assert [key for _, key, _ in seen.events] == [b"%d" % number for number in range(5)]


def fail_reads(monkeypatch: pytest.MonkeyPatch, fails: Callable[[Segment], bool]) -> None:
    read_bytes = Segment.read_bytes

    def read(segment: Segment, position: int, size: int) -> bytes:
        if fails(segment):
            raise OSError(errno.EIO, "Input/output error")
        return read_bytes(segment, position, size)

    monkeypatch.setattr(Segment, "read_bytes", read)


def test_a_log_that_cannot_be_read_is_read_again_from_its_start(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shard_log, "LOAD_SLICE_RECORDS", 1)
    monkeypatch.setattr(segment_batches, "WHOLE_CHUNK_BYTES", HEADER_BYTES)
    append(partition, (b"a", b"1"))
    append(partition, (b"b", b"1"))
    clock = VirtualScheduler()
    begun: list[Seen] = []
    ends: list[bool] = []

    def begin() -> Seen:
        begun.append(Seen())
        return begun[-1]

    reads = iter([False, False, True, True, True])
    fail_reads(monkeypatch, lambda _: next(reads, False))
    load_shard(partition, clock.call_later_ms, begin, lambda: ends.append(True), pytest.fail)
    clock.advance_ms(LOAD_RETRY_MS - 1)
    assert (len(begun), begun[0].events, ends) == (1, [(0, b"a", b"1")], [])
    clock.advance_ms(1)
    assert len(begun) == 2
    clock.advance_ms(2 * LOAD_RETRY_MS)
    assert (len(begun), ends) == (3, [])
    clock.advance_ms(4 * LOAD_RETRY_MS)
    assert (len(begun), ends) == (4, [True])
    assert begun[-1].events == [(0, b"a", b"1"), (1, b"b", b"1")]
    assert caplog.text.count("cannot be read") == 1


@pytest.mark.parametrize("slice_number", [0, 1])
def test_a_load_that_meets_a_mistake_fails_and_is_not_done(slice_number: int) -> None:
    def slices() -> Any:
        for number in range(3):
            if number == slice_number:
                raise RuntimeError("a mistake")
            yield

    clock = VirtualScheduler()
    ends: list[object] = []
    run_slices(slices(), lambda again: clock.call_later_ms(0, again), lambda: ends.append(True), ends.append)
    clock.advance_ms(0)
    assert [str(end) for end in ends] == ["a mistake"]
