"""The transactions of a range of a live partition.

Only headers of batches and markers are looked at, never records, and every read is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from oncelog.client.admin import Admin
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offsets import PartitionOffsets, partition_offsets
from oncelog.monitoring.open_transactions import OpenTransaction, open_transactions
from oncelog.monitoring.range_reader import reader_of
from oncelog.monitoring.transaction_spans import SpanTracker, TransactionOutcome, TransactionSpan
from oncelog.protocol.batch import BatchHeader, ControlMarker

BATCHES_MAX: Final = 5_000
READ_BYTES_MAX: Final = 16 * 1024 * 1024
"""At one look, of a partition. A broker sends records with the headers of their batches, however large they are."""
FETCH_BYTES: Final = 1024 * 1024


class PlainRun(NamedTuple):
    """Records outside of transactions, one batch after the other."""

    first_offset: int
    last_offset: int
    first_timestamp: int
    last_timestamp: int


def plain_runs(headers: Iterable[BatchHeader]) -> list[PlainRun]:
    """Runs of batches outside of transactions. A gap of compaction does not end a run; a transaction or a marker
    does."""
    runs: list[PlainRun] = []
    is_going_on = False
    for header in headers:
        if header.is_transactional or header.is_control:
            is_going_on = False
        elif is_going_on:
            runs[-1] = runs[-1]._replace(last_offset=header.last_offset, last_timestamp=header.max_timestamp)
        else:
            runs.append(PlainRun(header.base_offset, header.last_offset, first_ms(header), header.max_timestamp))
            is_going_on = True
    return runs


def first_ms(header: BatchHeader) -> int:
    """The time of its first record."""
    return header.max_timestamp if header.timestamp_type_append else header.base_timestamp


@dataclass(frozen=True, slots=True)
class Timeline:
    partition: TopicPartition
    offsets: PartitionOffsets
    start: int
    """Above the start asked for if only the newest batches are kept, and there were too many."""
    end: int
    """Where reading stopped: below the end asked for if there were too many batches, or too many bytes for one look."""
    spans: tuple[TransactionSpan, ...]
    """In the order in which they begin. Of one that began before `start`, only what is in the range is counted."""
    open: tuple[OpenTransaction, ...]
    """What is open on the partition now, in the range or not. The first of them holds readers back."""
    plain: tuple[PlainRun, ...]
    asked_start: int
    """The range asked for, as far as the partition has it."""
    asked_end: int

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
        self.wanted = self.start = self.end = 0
        """What was asked for last, and what there is: the start is above that if the oldest batches were dropped."""
        self.batches: deque[tuple[BatchHeader, ControlMarker | None]] = deque()

    def keep_from(self, start: int, log_end: int) -> None:
        """Forget what is below `start`, and everything if that is not known or if the log is another one by now."""
        if not self.wanted <= start <= self.end <= log_end:
            self.wanted = self.start = self.end = start
            self.batches.clear()
            return
        self.wanted, self.start = start, max(self.start, start)
        while self.batches and self.batches[0][0].last_offset < start:
            self.batches.popleft()

    def read_on(
        self, admin: Admin, partition: TopicPartition, end: int, batches_max: int, *, newest: bool = False
    ) -> None:
        """Up to `end`, or until enough was read for now, or until there are too many.

        With `newest` the oldest make room if there are too many: who follows a log must get to its end.
        """
        if self.end >= end:
            return
        read_bytes = 0
        with reader_of(admin, fetch_bytes=FETCH_BYTES) as reader:
            for chunk in reader.read(*partition, self.end, end):
                if read_bytes >= READ_BYTES_MAX:
                    return
                read_bytes += len(chunk.data)
                for one in chunk.batches_and_markers():
                    if len(self.batches) == batches_max:
                        if not newest:
                            return
                        self.start = self.batches.popleft()[0].next_offset
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
    newest: bool = False,
    known: KnownBatches | None = None,
    offsets: PartitionOffsets | None = None,
) -> Timeline:
    """The transactions in [start, end), by default of the whole partition.

    If there are too many batches, the first ones are read, or with `newest` the last ones. Nobody is asked for the
    offsets of the partition if they are given.
    """
    if offsets is None:
        offsets = partition_offsets(admin, [partition])[partition]
    first = offsets.start if start is None else max(start, offsets.start)
    last = offsets.end if end is None else min(end, offsets.end)
    batches = known if known is not None else KnownBatches()
    batches.keep_from(first, offsets.end)
    batches.read_on(admin, partition, last, batches_max, newest=newest)
    # Every open transaction holds the last stable offset back: without that there is nobody to ask about.
    opened = open_transactions(admin, [partition]) if offsets.held_back else []
    tracker = SpanTracker()
    spans = [_begun_before(tracker, one) for one in opened if one.start_offset < batches.start]
    spans += [span for header, marker in batches.batches for span in tracker.feed(header, marker)]
    plain = plain_runs(header for header, _ in batches.batches)
    return Timeline(
        partition, offsets, batches.start, batches.end, tuple(spans), tuple(opened), tuple(plain), first, last
    )


def _begun_before(tracker: SpanTracker, one: OpenTransaction) -> TransactionSpan:
    """What is open now has been so since it began: it covers the whole range, with records in it or not."""
    known_ms = one.description.start_time_ms if one.description is not None and not one.is_hanging else -1
    began_ms = known_ms if known_ms >= 0 else one.producer.last_timestamp_ms
    producer = one.producer
    return tracker.begin_before_log(producer.producer_id, producer.producer_epoch, one.start_offset, began_ms)
