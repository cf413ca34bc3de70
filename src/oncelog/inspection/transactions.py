"""Transactions of a partition, read from its files.

A transaction that began in a segment which is gone is known from the producer snapshot at the start of the first
segment. The last stable offset is the first offset of the oldest open transaction, or the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from oncelog.core.ids import TopicPartition
from oncelog.inspection import entries
from oncelog.inspection.batch_walk import walk
from oncelog.inspection.layout import Kind, PartitionFolder
from oncelog.monitoring.transaction_spans import SpanTracker, TransactionOutcome, TransactionSpan
from oncelog.storage.txn_index import AbortedTxn


@dataclass(slots=True)
class PartitionHistory:
    """`spans` are in the order in which they began."""

    partition: TopicPartition
    start_offset: int
    end_offset: int
    spans: list[TransactionSpan] = field(default_factory=list)
    aborted: list[AbortedTxn] = field(default_factory=list)
    """As the transaction indexes have them."""

    @property
    def open_spans(self) -> list[TransactionSpan]:
        return [span for span in self.spans if span.outcome is TransactionOutcome.OPEN]

    @property
    def last_stable_offset(self) -> int:
        return min((span.first_offset for span in self.open_spans), default=self.end_offset)


def read_history(folder: PartitionFolder, *, producer_ids: Iterable[int] | None = None) -> PartitionHistory:
    """All transactions of a partition, or those of some producers; what is open is always in it."""
    logs = folder.of_kind(Kind.LOG)
    base = logs[0].base_offset if logs else 0
    history = PartitionHistory(folder.partition, base, base)
    tracker = SpanTracker()
    history.spans += _open_at_start(folder, tracker, base)
    for _, batch in walk(folder):
        history.spans += tracker.feed(batch.header, batch.marker())
        history.end_offset = batch.header.next_offset
    for file in folder.of_kind(Kind.TXN_INDEX):
        history.aborted += [aborted for _, aborted in entries.read_txn_index(file.path)[0]]
    if producer_ids is not None:
        wanted = frozenset(producer_ids)
        history.spans = [s for s in history.spans if s.producer_id in wanted or s.outcome is TransactionOutcome.OPEN]
        history.aborted = [entry for entry in history.aborted if entry.producer_id in wanted]
    return history


def _open_at_start(folder: PartitionFolder, tracker: SpanTracker, base: int) -> Iterator[TransactionSpan]:
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
