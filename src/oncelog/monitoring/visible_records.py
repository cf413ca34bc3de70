"""How many records a reader at some offset still has to read: markers and aborted records do not count.

Only headers of batches are looked at, never records, and every look is bounded.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from oncelog.client.admin import Admin
from oncelog.client.fetcher import FetchedChunk
from oncelog.client.visibility import IsolationLevel
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offsets import PartitionOffsets
from oncelog.monitoring.range_reader import reader_of
from oncelog.monitoring.timeline import BATCHES_MAX, READ_BYTES_MAX, first_ms

FETCH_BYTES: Final = 256 * 1024
"""Small batches cost time by their number: one answer must not have many times as many as are counted."""


@dataclass(frozen=True, slots=True)
class VisibleRecords:
    """What a read_committed reader at an offset would get now."""

    records: int
    is_exact: bool
    """Otherwise there are at least so many."""
    oldest_ms: int | None
    """When the first of them was written; None if there are none."""
    markers: int = 0
    """Of transactions, between the offset and the last stable one; as far as it was counted."""


class _Batch(NamedTuple):
    last_offset: int
    records: int
    first_ms: int


class KnownRecords:
    """What was counted before, so that who counts again and again reads only what is new.

    What is below the last stable offset stays as it is, except that compaction may remove some of it: use one for a
    short time, and for one partition of one topic id.
    """

    def __init__(self) -> None:
        self.start = self.end = 0
        self.batches: deque[_Batch] = deque()
        """Those that a read_committed reader gets."""
        self.markers: deque[int] = deque()
        """Their offsets."""

    def keep_from(self, start: int, last_stable: int) -> None:
        """Forget what is below `start`, and everything if that is not known or if the log is another one by now."""
        if not self.start <= start <= self.end <= last_stable:
            self.start = self.end = start
            self.batches.clear()
            self.markers.clear()
            return
        self.start = start
        while self.batches and self.batches[0].last_offset < start:
            self.batches.popleft()
        while self.markers and self.markers[0] < start:
            self.markers.popleft()

    def read_on(self, admin: Admin, partition: TopicPartition, end: int, batches_max: int) -> None:
        """Up to `end`, or until enough was read for now, or until there are so many batches."""
        if self.end >= end or len(self.batches) >= batches_max:
            return
        read_bytes = 0
        with reader_of(admin, isolation=IsolationLevel.READ_COMMITTED, fetch_bytes=FETCH_BYTES) as reader:
            for chunk in reader.read(*partition, self.end, end):
                if read_bytes >= READ_BYTES_MAX or not self._take(chunk, batches_max):
                    return
                read_bytes += len(chunk.data)
        self.end = end

    def _take(self, chunk: FetchedChunk, batches_max: int) -> bool:
        """False if there was no room for all of it."""
        visible = {header.base_offset for _, header in chunk.batches}
        for _, header in chunk.headers():
            if header.is_control:
                self.markers.append(header.base_offset)
            elif header.base_offset in visible:
                if len(self.batches) >= batches_max:
                    return False
                self.batches.append(_Batch(header.last_offset, header.records_count, first_ms(header)))
            self.end = header.next_offset
        return True

    def total(self, last_stable: int) -> VisibleRecords:
        # A reader may be inside of the first batch.
        records = sum(min(one.records, one.last_offset - self.start + 1) for one in self.batches)
        oldest_ms = self.batches[0].first_ms if self.batches else None
        return VisibleRecords(records, self.end >= last_stable, oldest_ms, len(self.markers))


def count_visible(
    admin: Admin,
    partition: TopicPartition,
    position: int,
    offsets: PartitionOffsets,
    *,
    batches_max: int = BATCHES_MAX,
    known: KnownRecords | None = None,
) -> VisibleRecords:
    """Unlike a lag in offsets, this is 0 for a reader that has only markers and aborted records before it."""
    counted = known if known is not None else KnownRecords()
    counted.keep_from(max(position, offsets.start), offsets.last_stable)
    counted.read_on(admin, partition, offsets.last_stable, batches_max)
    return counted.total(offsets.last_stable)
