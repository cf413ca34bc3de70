"""Transactions of a partition as spans over its offsets.

A transaction begins with the first transactional batch of a producer and ends with its marker. Batches are replayed in
order, so that what is open at the end is what the broker would find open. Only headers and markers are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from oncelog.core.dataclass import dataclass
from oncelog.protocol.batch import BatchHeader, ControlMarker


class TransactionOutcome(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class TransactionSpan:
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    """The last offset of its data."""
    first_timestamp: int
    last_timestamp: int
    records: int = 0
    batches: int = 0
    size_bytes: int = 0
    outcome: TransactionOutcome = TransactionOutcome.OPEN
    marker_offset: int | None = None
    marker_epoch: int | None = None
    coordinator_epoch: int | None = None
    marker_timestamp: int | None = None
    began_before_log: bool = False
    """Its first batches are in segments that are gone, or in offsets that were not read."""

    @property
    def end_offset(self) -> int:
        """Exclusive; of an open one, where its data ends so far."""
        return (self.marker_offset if self.marker_offset is not None else self.last_offset) + 1

    def add(self, header: BatchHeader) -> None:
        self.last_offset = header.last_offset
        self.last_timestamp = header.max_timestamp
        self.records += header.records_count
        self.batches += 1
        self.size_bytes += header.size_bytes

    def end(self, header: BatchHeader, outcome: TransactionOutcome, coordinator_epoch: int) -> None:
        self.outcome = outcome
        self.marker_offset = header.base_offset
        self.marker_epoch = header.producer_epoch
        self.marker_timestamp = header.max_timestamp
        self.coordinator_epoch = coordinator_epoch


class SpanTracker:
    """Turns batches, in order, into spans."""

    def __init__(self) -> None:
        self.open: dict[int, TransactionSpan] = {}

    def begin_before_log(self, producer_id: int, epoch: int, first_offset: int, timestamp: int) -> TransactionSpan:
        span = TransactionSpan(
            producer_id, epoch, first_offset, first_offset, timestamp, timestamp, began_before_log=True
        )
        self.open[producer_id] = span
        return span

    def feed(self, header: BatchHeader, marker: ControlMarker | None) -> Iterator[TransactionSpan]:
        """The span that begins with this batch, if one does. `marker` is what a control batch says."""
        if header.is_control:
            if marker is not None and (marker.is_commit or marker.is_abort):
                span = self.open.pop(header.producer_id, None)
                if span is not None:
                    outcome = TransactionOutcome.COMMITTED if marker.is_commit else TransactionOutcome.ABORTED
                    span.end(header, outcome, marker.coordinator_epoch)
        elif header.is_transactional:
            span = self.open.get(header.producer_id)
            if span is None:
                span = self.open[header.producer_id] = TransactionSpan(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_offset,
                    header.last_offset,
                    header.base_timestamp,
                    header.max_timestamp,
                )
                yield span
            span.add(header)
