"""What a broker does with one partition when it starts: `storage.recovery`, told beforehand.

After a clean stop whose recovery point is the end of the log nothing is read. Otherwise the log is scanned from the
last index entry below the recovery point (from the start of that segment if its indexes cannot be used) to the end, and
cut at the first batch that is not whole. If that leaves less than the recovery point, all of the log is scanned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oncelog.inspection.batch_file import BatchFile
from oncelog.inspection.verification.finding import Severity
from oncelog.inspection.verification.segment_facts import SegmentFacts


@dataclass(frozen=True, slots=True)
class StartPlan:
    recovery_point: int | None
    scan_base: int | None
    """Base offset of the segment in which the scan begins; None if nothing is scanned."""
    scan_position: int
    """Byte in that segment."""
    end_offset: int
    """Of all that is in the files, whole or not in order."""

    def scans(self, base_offset: int, position: int) -> bool:
        """Whether the batch at that place is checked."""
        if self.scan_base is None:
            return False
        return base_offset > self.scan_base or (base_offset == self.scan_base and position >= self.scan_position)

    def rebuilds_indexes_of(self, base_offset: int) -> bool:
        return self.scan_base is not None and base_offset >= self.scan_base

    def severity_of_missing(self, base_offset: int, offset: int, otherwise: Severity) -> Severity:
        """Of something that follows what is in the log at `offset`, and is not there.

        A kill comes between the two, and the scan makes up for it. Below the recovery point it was there once.
        """
        if not self.rebuilds_indexes_of(base_offset):
            return otherwise
        return Severity.NOTE if offset >= (self.recovery_point or 0) else Severity.WARNING

    def about_batch(self, base_offset: int, position: int, offset: int, later_segments: int) -> str:
        """At a batch that is damaged."""
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


def plan_start(segments: Sequence[SegmentFacts], *, was_clean: bool, recovery_point: int | None) -> StartPlan:
    end, is_whole = _end_of(segments[-1])
    if was_clean and is_whole and recovery_point in (None, end):
        return StartPlan(recovery_point, None, 0, end)
    point = recovery_point or 0
    at_or_below = [number for number, facts in enumerate(segments) if facts.base_offset <= point]
    first = at_or_below[-1] if at_or_below else 0
    position = _scan_position(segments[first], point)
    if _scanned_end(segments[first:], position) < point:
        first, position = 0, 0
    return StartPlan(point, segments[first].base_offset, position, end)


def _end_of(facts: SegmentFacts) -> tuple[int, bool]:
    """The end of the segment as a broker finds it after a clean stop, from the last index entry on."""
    offsets = facts.offset_index.entries if facts.offset_index is not None else []
    position = offsets[-1].position if offsets else 0
    end = facts.base_offset
    file = BatchFile(facts.log.path)
    for batch in file.batches(position, whole=False):
        end = max(end, batch.header.next_offset)
    return end, file.problem is None


def _scan_position(facts: SegmentFacts, recovery_point: int) -> int:
    """Behind the batch of the last index entry below the recovery point; 0 if there is none that fits its batch."""
    index = facts.offset_index
    usable = [entry for entry in index.entries if entry.offset < recovery_point] if index is not None else []
    batch = BatchFile(facts.log.path).batch_at(usable[-1].position) if usable else None
    return batch.end_position if batch is not None and batch.header.last_offset == usable[-1].offset else 0


def _scanned_end(segments: Sequence[SegmentFacts], position: int) -> int:
    """Where the log is cut, or its end."""
    end = 0
    for facts in segments:
        end = max(end, facts.base_offset)
        file = BatchFile(facts.log.path)
        for batch in file.batches(position):
            if not batch.is_valid or batch.header.base_offset < end:
                return end
            end = batch.header.next_offset
        if file.problem is not None:
            return end
        position = 0
    return end
