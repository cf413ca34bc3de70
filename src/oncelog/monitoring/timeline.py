"""The transactions of a range of a live partition, and how many records a group still has to read.

Only headers of batches and markers are looked at, never records, and every read is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from oncelog.client.admin import Admin
from oncelog.client.fetcher import RangeReader
from oncelog.client.visibility import IsolationLevel
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offsets import PartitionOffsets, partition_offsets
from oncelog.monitoring.open_transactions import OpenTransaction, open_transactions
from oncelog.monitoring.transaction_spans import SpanTracker, TransactionOutcome, TransactionSpan
from oncelog.protocol.batch import BatchHeader, ControlMarker

BATCHES_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class Timeline:
    partition: TopicPartition
    offsets: PartitionOffsets
    start: int
    end: int
    """Where reading stopped: below the end asked for if there were too many batches."""
    spans: tuple[TransactionSpan, ...]
    """In the order in which they begin. One that began before `start` is cut off there."""
    open: tuple[OpenTransaction, ...]
    """What is open on the partition now, in the range or not. The first of them holds readers back."""

    def outcome_of(self, producer_id: int, offset: int) -> TransactionOutcome | None:
        """What became of a transactional record within the range."""
        for span in self.spans:
            if span.producer_id == producer_id and span.first_offset <= offset < span.end_offset:
                return span.outcome
        return None


class KnownBatches:
    """The batches of a range that was read before, so that who looks again and again reads only what is new.

    What is below the high watermark stays as it is, except that compaction may remove some of it: use one for a short
    time, and for one partition of one topic id.
    """

    def __init__(self) -> None:
        self.start = self.end = 0
        self.batches: list[tuple[BatchHeader, ControlMarker | None]] = []

    def keep_from(self, start: int, log_end: int) -> None:
        """Forget what is below `start`, and everything if that is not known or if the log is another one by now."""
        if not self.start <= start <= self.end <= log_end:
            self.start, self.end, self.batches = start, start, []
            return
        self.start = start
        self.batches = [one for one in self.batches if one[0].last_offset >= start]

    def read_on(self, admin: Admin, partition: TopicPartition, end: int, batches_max: int) -> None:
        """Up to `end`, or until there are too many."""
        if self.end >= end:
            return
        with RangeReader(admin, isolation=IsolationLevel.READ_UNCOMMITTED, check_crcs=False) as reader:
            for chunk in reader.read(*partition, self.end, end):
                for one in chunk.batches_and_markers():
                    if len(self.batches) == batches_max:
                        return
                    self.batches.append(one)
                    self.end = one[0].next_offset
        self.end = max(self.end, end)


def read_timeline(
    admin: Admin,
    partition: TopicPartition,
    start: int | None = None,
    end: int | None = None,
    *,
    batches_max: int = BATCHES_MAX,
    known: KnownBatches | None = None,
) -> Timeline:
    """The transactions in [start, end), by default of the whole partition."""
    offsets = partition_offsets(admin, [partition])[partition]
    first = offsets.start if start is None else max(start, offsets.start)
    last = offsets.end if end is None else min(end, offsets.end)
    batches = known if known is not None else KnownBatches()
    batches.keep_from(first, offsets.end)
    batches.read_on(admin, partition, last, batches_max)
    tracker = SpanTracker()
    spans = [span for header, marker in batches.batches for span in tracker.feed(header, marker)]
    return Timeline(partition, offsets, first, batches.end, tuple(spans), tuple(open_transactions(admin, [partition])))


@dataclass(frozen=True, slots=True)
class VisibleRecords:
    """What a read_committed reader at an offset would get now."""

    records: int
    is_exact: bool
    """Otherwise there are at least so many."""
    oldest_ms: int | None
    """When the first of them was written; None if there are none."""


def count_visible(
    admin: Admin, partition: TopicPartition, position: int, offsets: PartitionOffsets, *, batches_max: int = BATCHES_MAX
) -> VisibleRecords:
    """Unlike a lag in offsets, this is 0 for a reader that has only markers and aborted records before it."""
    records, batches = 0, 0
    oldest_ms: int | None = None
    start = max(position, offsets.start)
    with RangeReader(admin, check_crcs=False) as reader:
        for chunk in reader.read(*partition, start, offsets.last_stable):
            for _, header in chunk.batches:
                if batches == batches_max:
                    return VisibleRecords(records, False, oldest_ms)
                records += min(header.records_count, header.last_offset - start + 1)
                batches += 1
                if oldest_ms is None:
                    oldest_ms = header.max_timestamp if header.timestamp_type_append else header.base_timestamp
    return VisibleRecords(records, True, oldest_ms)
