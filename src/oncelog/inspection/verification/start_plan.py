"""What a broker will do with one partition when it starts: a prediction of `storage.recovery`.

After a clean stop whose recovery point is the end of the log nothing is read. Otherwise the log is scanned from the
last index entry below the recovery point (from the start of that segment if its indexes cannot be used) to the end, and
cut at the first batch that is not whole. If that leaves less than the recovery point, all of the log is scanned.

The rules are repeated here because a real start changes files: it truncates logs and rebuilds indexes. A test starts
the storage on copies of damaged folders and compares.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from operator import attrgetter

from oncelog.core.ids import NO_TIMESTAMP
from oncelog.inspection.batch_file import BatchFile, InspectedBatch
from oncelog.inspection.verification.finding import Severity
from oncelog.inspection.verification.segment_facts import SegmentFacts, offsets_ascend, times_ascend
from oncelog.storage.file_cache import FileCache
from oncelog.storage.offset_index import OffsetPosition
from oncelog.storage.segment_names import TXN_INDEX_SUFFIX
from oncelog.storage.segment_notes import SegmentNote, SegmentNotes
from oncelog.storage.time_index import TimestampEntry
from oncelog.storage.txn_index import CorruptTxnIndexError, TxnIndex


@dataclass(frozen=True, slots=True)
class StartPlan:
    recovery_point: int | None
    scan_base: int | None
    """Base offset of the segment in which the scan begins; None if nothing is scanned."""
    scan_position: int
    """Byte in that segment."""
    end_offset: int
    """The end of all that is in the files, damaged or not."""

    def scans(self, base_offset: int, position: int) -> bool:
        """Whether the batch at that place is checked."""
        if self.scan_base is None:
            return False
        return base_offset > self.scan_base or (base_offset == self.scan_base and position >= self.scan_position)

    def rebuilds_indexes_of(self, base_offset: int) -> bool:
        return self.scan_base is not None and base_offset >= self.scan_base

    def severity_of_missing(self, base_offset: int, offset: int, otherwise: Severity) -> Severity:
        """The severity of a missing entry that a broker writes after the batch at `offset`.

        Above the recovery point a kill can have come between the two writes, and the scan at a start adds the entry.
        Below it the entry was there once.
        """
        if not self.rebuilds_indexes_of(base_offset):
            return otherwise
        return Severity.NOTE if offset >= (self.recovery_point or 0) else Severity.WARNING

    def about_batch(self, base_offset: int, position: int, offset: int, later_segments: int) -> str:
        """What a start does when it finds a damaged batch."""
        if self.scans(base_offset, position):
            lost = (
                f"offsets {offset} to {self.end_offset - 1} are lost"
                if self.end_offset > offset
                else "no whole batch is lost"
            )
            more = f" and removes {later_segments} later segments" if later_segments else ""
            return f"cuts the log at offset {offset}{more}: {lost}"
        return (
            f"does not look at it ({self._why_not()}); clients that read offset {offset} refuse it as corrupt and "
            "cannot get past it"
        )

    def about_index(self, base_offset: int) -> str:
        if self.rebuilds_indexes_of(base_offset):
            return "rebuilds the indexes of this segment from the log, since it is scanned"
        return f"does not look at it ({self._why_not()}); a lookup that notices it rebuilds the indexes of the segment"

    def about_txn_index(self, base_offset: int, harm: str) -> str:
        if self.rebuilds_indexes_of(base_offset):
            return "rebuilds the transaction index of this segment from the markers, since it is scanned"
        return (
            "rebuilds the transaction index of this segment from the markers before it is first used "
            f"({self._why_not()}); with a broker that trusts it, as Kafka does, {harm}"
        )

    def _why_not(self) -> str:
        if self.scan_base is None:
            return "the last stop was clean"
        return f"it lies below the recovery point {self.recovery_point}"


def plan_start(
    segments: Sequence[SegmentFacts], notes: SegmentNotes, *, was_clean: bool, recovery_point: int | None
) -> StartPlan:
    last = segments[-1]
    end, is_whole = _end_of(last, notes.by_base_offset.get(last.base_offset))
    if was_clean and is_whole and recovery_point in (None, end):
        return StartPlan(recovery_point, None, 0, end)
    point = recovery_point or 0
    first = max(0, bisect_right(segments, point, key=attrgetter("base_offset")) - 1)
    start = _scan_start(segments[first], notes.by_base_offset.get(segments[first].base_offset), point)
    if _scanned_end(segments[first:], *start) < point:
        return StartPlan(point, segments[0].base_offset, 0, end)
    return StartPlan(point, segments[first].base_offset, start[1], end)


def _end_of(facts: SegmentFacts, note: SegmentNote | None) -> tuple[int, bool]:
    """The end of the segment as a broker finds it after a clean stop, and whether it ends with a whole batch.

    The last index entry saves most of the way. An index that cannot be used is rebuilt, which takes all batches.
    """
    last = _last_indexed(facts, note)
    file = BatchFile(facts.log.path)
    end, is_in_order = facts.base_offset, True
    for batch in file.batches(last.position if last is not None else 0, whole=False):
        is_in_order &= last is not None or batch.header.base_offset >= end
        end = batch.header.next_offset
    return end, file.problem is None and is_in_order


def _last_indexed(facts: SegmentFacts, note: SegmentNote | None) -> InspectedBatch | None:
    """The batch of the last index entry, if both indexes pass the checks at opening."""
    offsets, times = _whole_indexes(facts)
    if not offsets or (note is not None and len(times) < note.time_entries):
        return None
    return _batch_of(facts, offsets[-1]) if _has_timestamp(facts, times) else None


def _scan_start(facts: SegmentFacts, note: SegmentNote | None, recovery_point: int) -> tuple[int, int]:
    """Offset and position behind the last index entry below the recovery point, if the indexes can be used."""
    offsets, times = _whole_indexes(facts)
    below = [entry for entry in offsets if entry.offset < recovery_point]
    batch = _batch_of(facts, below[-1]) if below else None
    if (
        batch is None
        or offsets[-1].position >= facts.log.path.stat().st_size
        or not all(starmap(offsets_ascend, pairwise([OffsetPosition(facts.base_offset, 0), *offsets])))
        or not all(starmap(times_ascend, pairwise([TimestampEntry(NO_TIMESTAMP, facts.base_offset), *times])))
        or not _fits_note(facts, note)
        or not _has_timestamp(facts, times, batch.header.next_offset)
    ):
        return facts.base_offset, 0
    return batch.header.next_offset, batch.end_position


def _whole_indexes(facts: SegmentFacts) -> tuple[list[OffsetPosition], list[TimestampEntry]]:
    """No entries if an index is missing or torn."""
    offsets, times = facts.offset_index, facts.time_index
    if offsets is None or times is None or offsets.odd_bytes or times.odd_bytes:
        return [], []
    return offsets.entries, times.entries


def _fits_note(facts: SegmentFacts, note: SegmentNote | None) -> bool:
    """Whether the transaction index still has what was noted of it."""
    index = TxnIndex(FileCache(read_only=True).handle(facts.path(TXN_INDEX_SUFFIX)), facts.base_offset)
    try:
        index.sanity_check()
        return note is not None and index.starts_with(note.txn_entries, note.txn_crc)
    except CorruptTxnIndexError:
        return False
    finally:
        index.close()


def _batch_of(facts: SegmentFacts, entry: OffsetPosition) -> InspectedBatch | None:
    batch = BatchFile(facts.log.path).batch_at(entry.position) if entry.position > 0 else None
    return batch if batch is not None and batch.header.last_offset == entry.offset else None


def _has_timestamp(facts: SegmentFacts, times: Sequence[TimestampEntry], end_offset: int | None = None) -> bool:
    """Whether the last entry, of those below `end_offset`, is what its batch says. Damaged batches say nothing."""
    kept = [entry for entry in times if end_offset is None or entry.offset < end_offset]
    if not kept:
        return end_offset is not None and bool(times)
    timestamp, offset = kept[-1]
    indexed = [entry for entry in _whole_indexes(facts)[0] if entry.offset <= offset]
    before = _batch_of(facts, indexed[-1]) if indexed else None
    file = BatchFile(facts.log.path)
    for batch in file.batches(before.position if before is not None else 0, whole=False):
        if batch.header.last_offset >= offset:
            return batch.header.max_timestamp == timestamp
    return file.problem is not None


def _scanned_end(segments: Sequence[SegmentFacts], end: int, position: int) -> int:
    """Where a scan that begins at offset `end` cuts the log, or the end of the log."""
    for number, facts in enumerate(segments):
        if number:
            end, position = facts.base_offset, 0
        file = BatchFile(facts.log.path)
        for batch in file.batches(position):
            if not batch.is_valid or batch.header.base_offset < end or batch.header.last_offset_delta < 0:
                return end
            end = batch.header.next_offset
        if file.problem is not None:
            return end
    return end
