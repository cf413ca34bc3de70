"""One segment, read once: its batches are checked and counted, and what its indexes must say is noted on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from oncelog.core.ids import NO_TIMESTAMP
from oncelog.inspection import entries
from oncelog.inspection.batch_file import InspectedBatch, TornEnd
from oncelog.inspection.entries import IndexContent, TxnIndexContent
from oncelog.inspection.layout import StoredFile
from oncelog.storage.offset_index import OffsetPosition
from oncelog.storage.time_index import TimestampEntry
from oncelog.storage.txn_index import AbortedTxn


@dataclass(slots=True)
class TimeFact:
    """About the first batch that ends at or above an indexed offset."""

    last_offset: int
    batch_maximum: int
    running_maximum: int


@dataclass(slots=True)
class SegmentFacts:
    """Indexes as they are in the files, None where there is none, and what the log says they should be."""

    log: StoredFile
    offset_index: IndexContent[OffsetPosition] | None
    time_index: IndexContent[TimestampEntry] | None
    txn_index: TxnIndexContent | None
    torn: TornEnd | None = None
    end_offset: int = 0
    end_position: int = 0
    batches: int = 0
    largest_batch_bytes: int = 0
    largest_timestamp: int = NO_TIMESTAMP
    last_offsets: dict[int, int] = field(default_factory=dict)
    """The last offsets of batches to which the offset index points, by position."""
    times: dict[int, TimeFact] = field(default_factory=dict)
    """By offset in the time index."""
    abort_markers: dict[int, int] = field(default_factory=dict)
    """Producer id by offset."""
    aborted: dict[int, AbortedTxn] = field(default_factory=dict)
    """Transactions that the markers here end, as their index entries should be; by marker offset."""

    @classmethod
    def read(cls, log: StoredFile) -> SegmentFacts:
        base = log.base_offset
        index, time_index, txn_index = (log.sibling(suffix) for suffix in (".index", ".timeindex", ".txnindex"))
        facts = cls(
            log,
            entries.read_offset_index(index, base) if index.exists() else None,
            entries.read_time_index(time_index, base) if time_index.exists() else None,
            entries.read_txn_index(txn_index) if txn_index.exists() else None,
        )
        facts.end_offset = base
        return facts

    @property
    def base_offset(self) -> int:
        return self.log.base_offset

    def path(self, suffix: str) -> Path:
        return self.log.sibling(suffix)

    def add_aborted(self, aborted: AbortedTxn) -> None:
        self.aborted[aborted.last_offset] = aborted


def offsets_ascend(before: OffsetPosition, after: OffsetPosition) -> bool:
    return after.offset > before.offset and after.position > before.position


def times_ascend(before: TimestampEntry, after: TimestampEntry) -> bool:
    return after.timestamp > before.timestamp and after.offset >= before.offset


class Watch:
    """Notes of each batch, in order, what the indexes can be compared with."""

    def __init__(self, facts: SegmentFacts) -> None:
        self.facts = facts
        self._positions = {entry.position for entry in facts.offset_index.entries} if facts.offset_index else set()
        times = facts.time_index.entries if facts.time_index is not None else []
        self._waiting = sorted({entry.offset for entry in times}, reverse=True)

    def note(self, batch: InspectedBatch) -> None:
        facts, header = self.facts, batch.header
        facts.batches += 1
        facts.end_offset = header.next_offset
        facts.end_position = batch.end_position
        facts.largest_batch_bytes = max(facts.largest_batch_bytes, header.size_bytes)
        facts.largest_timestamp = max(facts.largest_timestamp, header.max_timestamp)
        if batch.position in self._positions:
            facts.last_offsets[batch.position] = header.last_offset
        while self._waiting and self._waiting[-1] <= header.last_offset:
            facts.times[self._waiting.pop()] = TimeFact(
                header.last_offset, header.max_timestamp, facts.largest_timestamp
            )
