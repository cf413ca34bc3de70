"""What an answer names of aborted transactions is bounded, and readers see the committed records and no others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.client.visibility import IsolationLevel, visible_batches
from oncelog.cluster.partition import Partition
from oncelog.core.errors import ErrorCode
from oncelog.core.steps import at_once
from oncelog.protocol.batch import CorruptBatchError, decode_records
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.server import aborted_transactions, turns
from oncelog.server.aborted_transactions import AbortedTransactions
from oncelog.storage import txn_index
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_produce_fetch import fetch_request, only_partition
from tests.unit.storage.log_harness import NOW_MS, append_txn, end_txn

NAMED_MAX = 10
FETCH_VERSION = 11
SEGMENT_OFFSETS = 40


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerInProcess]:
    monkeypatch.setattr(aborted_transactions, "NAMED_MAX", NAMED_MAX)
    node = BrokerInProcess(tmp_path)
    node.create("orders", partitions=3)
    yield node
    node.stop()


def partition_of(node: BrokerInProcess, index: int = 0) -> Partition:
    return node.broker.partitions.get("orders", index)


class Producers:
    """Of a partition: they have transactions that overlap in every way."""

    def __init__(self, partition: Partition, seed: int = 1) -> None:
        self.committed: list[int] = []
        """Offsets of the records."""
        self._partition = partition
        self._random = random.Random(seed)
        self._open: dict[int, list[int]] = {}
        self._sequences: dict[int, int] = {}

    def write(self, producer: int) -> None:
        sequence = self._sequences.get(producer, 0)
        info = append_txn(self._partition.log, producer, sequence)
        self._sequences[producer] = sequence + 1
        self._open.setdefault(producer, []).append(info.first_offset)
        if info.first_offset % SEGMENT_OFFSETS == SEGMENT_OFFSETS - 1:
            self._partition.log.roll(NOW_MS)

    def end(self, producer: int, *, commit: bool) -> None:
        offsets = self._open.pop(producer)
        end_txn(self._partition.log, producer, commit=commit)
        self.committed = sorted([*self.committed, *(offsets if commit else [])])

    def end_all(self, commit_every: int) -> None:
        for number, producer in enumerate(list(self._open)):
            self.end(producer, commit=number % commit_every == commit_every - 1)
        self._partition.update_high_watermark()

    def play(self, steps: int, producers: int) -> None:
        for _ in range(steps):
            producer = self._random.randrange(1, producers + 1)
            if producer in self._open and self._random.random() < 0.4:
                self.end(producer, commit=self._random.random() < 0.3)
            else:
                self.write(producer)


def fetch(node: BrokerInProcess, offsets: dict[tuple[str, int], int]) -> Any:
    request = fetch_request(node, offsets)
    request.isolation_level = IsolationLevel.READ_COMMITTED
    return node.call(request, FETCH_VERSION)


def seen_by_a_reader(node: BrokerInProcess) -> list[int]:
    """Offsets of the records."""
    seen: list[int] = []
    position, end = 0, partition_of(node).high_watermark
    while position < end:
        answer = only_partition(fetch(node, {("orders", 0): position}))
        assert (answer.error_code, len(answer.aborted_transactions) <= NAMED_MAX) == (0, True)
        visible = visible_batches(answer.records, position, answer.aborted_transactions, IsolationLevel.READ_COMMITTED)
        for start, header in visible.batches:
            offsets = [header.base_offset + record.offset_delta for record in decode_records(answer.records, start)]
            seen += [offset for offset in offsets if offset >= position]
        assert visible.next_offset > position, "a reader must get on"
        position = visible.next_offset
    return seen


def test_more_producers_at_a_time_than_are_named(node: BrokerInProcess) -> None:
    producers = Producers(partition_of(node))
    for _ in range(3):
        for producer in range(1, 5 * NAMED_MAX):
            producers.write(producer)
    producers.end_all(commit_every=4)
    assert seen_by_a_reader(node) == producers.committed != []


def test_more_transactions_in_a_row_than_are_named(node: BrokerInProcess) -> None:
    producers = Producers(partition_of(node))
    for number in range(5 * NAMED_MAX):
        producers.write(7)
        producers.end(7, commit=number % 5 == 0)
    producers.end_all(1)
    assert seen_by_a_reader(node) == producers.committed != []


@pytest.mark.parametrize("seed", range(8))
def test_transactions_that_overlap_in_every_way(node: BrokerInProcess, seed: int) -> None:
    producers = Producers(partition_of(node), seed)
    producers.play(steps=300, producers=4 + 8 * (seed % 4))
    producers.end_all(commit_every=3)
    assert len(partition_of(node).log.aborted_transactions(0, 1000)) > 2 * NAMED_MAX
    assert seen_by_a_reader(node) == producers.committed != []


def test_an_index_that_is_away_fails_its_partition_alone(node: BrokerInProcess) -> None:
    """It was renamed with a segment whose swap failed half way, and the log could not be repaired yet. The answer is an
    error: without the index, aborted records would be taken for committed ones."""
    for index in range(2):
        producers = Producers(partition_of(node, index))
        for producer in range(1, 4):
            producers.write(producer)
        producers.end_all(commit_every=100)
    segment = partition_of(node).log.segments[-1]
    assert len(segment.txn_index) == 3
    segment.txn_index.close()
    segment.txn_index.path.rename(segment.txn_index.path.with_suffix(".deleted"))
    away, there = fetch(node, {("orders", 0): 0, ("orders", 1): 0}).responses[0].partitions
    assert (away.error_code, not away.records) == (ErrorCode.KAFKA_STORAGE_ERROR, True)
    assert (there.error_code, len(there.aborted_transactions)) == (0, 3)


def test_partitions_of_an_answer_share_what_is_named(node: BrokerInProcess) -> None:
    for index in range(3):
        producers = Producers(partition_of(node, index))
        for producer in range(1, 9):
            producers.write(producer)
        producers.end_all(commit_every=100)
    answer = fetch(node, {("orders", index): 0 for index in range(3)})
    parts = answer.responses[0].partitions
    assert [len(part.aborted_transactions) for part in parts] == [8, 1, 0]
    assert [len(part.records) > 0 for part in parts] == [True, True, False]
    assert [part.error_code for part in parts] == [0, 0, 0]


def test_a_damaged_batch_ends_what_is_told(node: BrokerInProcess) -> None:
    producers = Producers(partition_of(node))
    for producer in range(1, 3 * NAMED_MAX):
        producers.write(producer)
    producers.end_all(commit_every=100)
    log = partition_of(node).log
    whole = log.read(0, 1 << 20, end_offset=log.log_end_offset)
    data_bytes = bytes(whole.data)
    size = int.from_bytes(data_bytes[8:12], "big") + 12
    damaged = data_bytes[: size + 8] + bytes(4) + data_bytes[size + 12 :]
    named = AbortedTransactions()
    data = PartitionData(records=damaged)
    assert at_once(named.name(partition_of(node), 0, whole.upper_bound_offset, data))
    assert (data.records, [each.first_offset for each in data.aborted_transactions or []]) == (damaged[:size], [0])
    nothing_whole = PartitionData(records=damaged[size:])
    with pytest.raises(CorruptBatchError):
        at_once(AbortedTransactions().name(partition_of(node), 1, whole.upper_bound_offset, nothing_whole))


def test_a_partition_that_goes_away_meanwhile_is_read_again(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(txn_index, "_READ_CHUNK_ENTRIES", 2)
    partition = partition_of(node)
    producers = Producers(partition)
    for number in range(100):
        producers.write(7)
        producers.end(7, commit=number % 5 == 0)
    producers.end_all(1)
    result = partition.log.read(0, 1 << 20, end_offset=partition.log.log_end_offset)
    steps = AbortedTransactions().name(partition, 0, partition.log.log_end_offset, PartitionData(records=result.data))
    next(steps)
    node.delete("orders")
    assert at_once(steps) is False
    node.create("orders", partitions=3)


def test_segments_that_go_before_the_answer_is_cut_are_missed(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for fewer begins anew, and would no longer find what was aborted in them."""
    monkeypatch.setattr(txn_index, "_READ_CHUNK_ENTRIES", 2)
    partition = partition_of(node)
    producers = Producers(partition)
    for producer in range(2 * NAMED_MAX):
        producers.write(producer)
    for producer in range(NAMED_MAX - 2):
        producers.end(producer, commit=False)
    second = partition.log.roll(NOW_MS)
    producers.end_all(commit_every=100)
    log = partition.log
    result = log.read(0, 1 << 20, end_offset=log.log_end_offset)
    steps = AbortedTransactions().name(partition, 0, result.upper_bound_offset, PartitionData(records=result.data))
    for _ in range(NAMED_MAX // 2):
        next(steps)
    log.delete_records(second.base_offset)
    assert at_once(steps) is False


def test_a_fetch_reads_a_log_again_that_changes_while_it_is_searched(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records whose aborted transactions can no longer be named are not sent."""
    monkeypatch.setattr(txn_index, "_READ_CHUNK_ENTRIES", 2)
    partition = partition_of(node)
    producers = Producers(partition)
    for producer in range(1, NAMED_MAX):
        producers.write(producer)
    producers.end_all(commit_every=100)
    end_offset = partition.log.roll(NOW_MS).base_offset
    producers.write(1)
    producers.end(1, commit=True)
    producers.end_all(1)
    request = fetch_request(node, {("orders", 0): 0})
    request.isolation_level = IsolationLevel.READ_COMMITTED
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    waiting = node.send(request, FETCH_VERSION)
    assert not waiting.done
    partition.delete_records(end_offset)
    node.clock.advance_ms(0)
    answer = only_partition(waiting.value)
    assert (answer.error_code, len(answer.records or b"")) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0)
