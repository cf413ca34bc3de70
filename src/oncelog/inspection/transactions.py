"""Transactions of a partition as spans over its offsets.

Theory of operation. A transaction begins with the first transactional batch of a producer and ends with its marker. The
batches are replayed in order, so that what is open at the end of the log is what the broker would find open. A
transaction that began in a segment which is gone is known from the producer snapshot at the start of the first segment.

The last stable offset is the first offset of the oldest open transaction, or the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from oncelog.core.ids import TopicPartition
from oncelog.inspection import entries
from oncelog.inspection.batch_file import StoredBatch
from oncelog.inspection.batch_walk import walk
from oncelog.inspection.layout import Kind, PartitionFolder
from oncelog.storage.txn_index import AbortedTxn


class Outcome(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class TxnSpan:
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    """Of its data."""
    first_timestamp: int
    last_timestamp: int
    records: int = 0
    batches: int = 0
    size_bytes: int = 0
    outcome: Outcome = Outcome.OPEN
    marker_offset: int | None = None
    marker_epoch: int | None = None
    coordinator_epoch: int | None = None
    marker_timestamp: int | None = None
    began_before_log: bool = False
    """Its first batches are in segments that are gone."""

    @property
    def end_offset(self) -> int:
        """Exclusive; of an open one, where its data ends so far."""
        return (self.marker_offset if self.marker_offset is not None else self.last_offset) + 1

    def add(self, batch: StoredBatch) -> None:
        header = batch.header
        self.last_offset = header.last_offset
        self.last_timestamp = header.max_timestamp
        self.records += header.records_count
        self.batches += 1
        self.size_bytes += header.size_bytes

    def end(self, batch: StoredBatch, outcome: Outcome, coordinator_epoch: int) -> None:
        self.outcome = outcome
        self.marker_offset = batch.header.base_offset
        self.marker_epoch = batch.header.producer_epoch
        self.marker_timestamp = batch.header.max_timestamp
        self.coordinator_epoch = coordinator_epoch


@dataclass(slots=True)
class PartitionHistory:
    """`spans` are in the order in which they began."""

    partition: TopicPartition
    start_offset: int
    end_offset: int
    spans: list[TxnSpan] = field(default_factory=list)
    aborted: list[AbortedTxn] = field(default_factory=list)
    """As the transaction indexes have them."""

    @property
    def open_spans(self) -> list[TxnSpan]:
        return [span for span in self.spans if span.outcome is Outcome.OPEN]

    @property
    def last_stable_offset(self) -> int:
        return min((span.first_offset for span in self.open_spans), default=self.end_offset)


class SpanTracker:
    """Turns batches, in order, into spans."""

    def __init__(self) -> None:
        self.open: dict[int, TxnSpan] = {}

    def begin_before_log(self, producer_id: int, epoch: int, first_offset: int, timestamp: int) -> TxnSpan:
        span = TxnSpan(producer_id, epoch, first_offset, first_offset, timestamp, timestamp, began_before_log=True)
        self.open[producer_id] = span
        return span

    def feed(self, batch: StoredBatch) -> Iterator[TxnSpan]:
        """The span that begins with this batch, if one does."""
        header = batch.header
        if header.is_control:
            marker = batch.marker()
            if marker is not None and (marker.is_commit or marker.is_abort):
                span = self.open.pop(header.producer_id, None)
                if span is not None:
                    outcome = Outcome.COMMITTED if marker.is_commit else Outcome.ABORTED
                    span.end(batch, outcome, marker.coordinator_epoch)
        elif header.is_transactional:
            span = self.open.get(header.producer_id)
            if span is None:
                span = self.open[header.producer_id] = TxnSpan(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_offset,
                    header.last_offset,
                    header.base_timestamp,
                    header.max_timestamp,
                )
                yield span
            span.add(batch)


def read_history(folder: PartitionFolder, *, producer_ids: Iterable[int] | None = None) -> PartitionHistory:
    """All transactions of a partition, or those of some producers; what is open is always in it."""
    logs = folder.of_kind(Kind.LOG)
    base = logs[0].base_offset if logs else 0
    history = PartitionHistory(folder.partition, base, base)
    tracker = SpanTracker()
    history.spans += _open_at_start(folder, tracker, base)
    for _, batch in walk(folder):
        history.spans += tracker.feed(batch)
        history.end_offset = batch.header.next_offset
    for file in folder.of_kind(Kind.TXN_INDEX):
        history.aborted += [aborted for _, aborted in entries.read_txn_index(file.path)[0]]
    if producer_ids is not None:
        wanted = frozenset(producer_ids)
        history.spans = [s for s in history.spans if s.producer_id in wanted or s.outcome is Outcome.OPEN]
        history.aborted = [entry for entry in history.aborted if entry.producer_id in wanted]
    return history


def _open_at_start(folder: PartitionFolder, tracker: SpanTracker, base: int) -> Iterator[TxnSpan]:
    for file in folder.of_kind(Kind.SNAPSHOT):
        if file.base_offset != base:
            continue
        try:
            producers = entries.read_snapshot(file.path)
        except entries.Unreadable:
            return
        for producer in sorted(producers, key=lambda producer: producer.txn_first_offset):
            if producer.txn_first_offset >= 0:
                yield tracker.begin_before_log(
                    producer.producer_id, producer.epoch, producer.txn_first_offset, producer.last_timestamp
                )
