"""Batches by themselves and one after the other: whole, intact, in order, and their records as the header says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from oncelog.core.errors import KafkaError
from oncelog.inspection.batch_file import BatchFile, InspectedBatch
from oncelog.inspection.verification.finding import Report
from oncelog.inspection.verification.segment_facts import SegmentFacts, Watch
from oncelog.inspection.verification.start_plan import StartPlan
from oncelog.protocol.batch import CODEC_MASK

_MARKER_RECORDS: Final = 1


@dataclass(slots=True)
class LogChecks:
    report: Report
    plan: StartPlan
    is_compacted: bool
    deep: bool
    later_segments: int = 0
    next_offset: int | None = None
    """Where the log goes on; None before its first batch."""

    def checked(self, facts: SegmentFacts, later_segments: int) -> Iterator[InspectedBatch]:
        """The batches of a segment. Those that are damaged or out of order are reported and left out."""
        self.later_segments = later_segments
        self._check_base(facts)
        watch = Watch(facts)
        file = BatchFile(facts.log.path)
        for batch in file.batches():
            self.report.batches += 1
            if not self._is_intact(facts, batch) or not self._is_in_order(facts, batch):
                watch.note(batch)
                continue
            if self.deep:
                self._check_records(facts, batch)
            watch.note(batch)
            self.next_offset = batch.header.next_offset
            yield batch
        facts.torn = file.problem
        self._check_end(facts)

    def _check_base(self, facts: SegmentFacts) -> None:
        expected = self.next_offset
        if expected is None or facts.base_offset == expected:
            return
        if facts.base_offset < expected:
            self.report.error(
                "segment.overlap",
                facts.log.path,
                f"the segment starts at offset {facts.base_offset}, but the one before it reaches {expected - 1}",
                self.plan.about_batch(facts.base_offset, 0, facts.base_offset, self.later_segments),
                offset=facts.base_offset,
            )
        elif not self.is_compacted:
            self._gap(facts, expected, facts.base_offset, 0)

    def _is_intact(self, facts: SegmentFacts, batch: InspectedBatch) -> bool:
        header = batch.header
        if not batch.is_valid:
            self._damage(
                facts, batch, "batch.crc", f"the batch has the checksum {batch.crc}, its header says {header.crc}"
            )
            return False
        problem = ""
        if header.last_offset_delta < 0 or header.records_count < 0:
            problem = f"last offset delta {header.last_offset_delta}, {header.records_count} records"
        elif header.attributes & CODEC_MASK > 4:
            problem = f"unknown codec {header.codec}"
        elif (header.producer_id >= 0) != (header.producer_epoch >= 0):
            problem = f"producer id {header.producer_id} with epoch {header.producer_epoch}"
        if problem:
            self._damage(facts, batch, "batch.header", f"the header makes no sense: {problem}")
        return not problem

    def _is_in_order(self, facts: SegmentFacts, batch: InspectedBatch) -> bool:
        header, expected = batch.header, self.next_offset
        if header.base_offset < max(expected or 0, facts.base_offset):
            before = f"offset {expected} is next" if expected is not None else f"the file starts at {facts.base_offset}"
            self._damage(facts, batch, "batch.order", f"the batch starts at offset {header.base_offset}, but {before}")
            return False
        if expected is not None and header.base_offset > expected and not self.is_compacted:
            self._gap(facts, expected, header.base_offset, batch.position)
        return True

    def _gap(self, facts: SegmentFacts, expected: int, found: int, position: int) -> None:
        self.report.error(
            "log.gap",
            facts.log.path,
            f"offsets {expected} to {found - 1} are missing, and the topic is not compacted",
            "goes on behind the gap",
            offset=expected,
            position=position,
        )

    def _damage(self, facts: SegmentFacts, batch: InspectedBatch, check: str, what: str) -> None:
        offset = batch.header.base_offset if self.next_offset is None else self.next_offset
        self.report.error(
            check,
            facts.log.path,
            what,
            self.plan.about_batch(facts.base_offset, batch.position, offset, self.later_segments),
            offset=offset,
            position=batch.position,
        )

    def _check_end(self, facts: SegmentFacts) -> None:
        torn = facts.torn
        if torn is None:
            return
        offset = facts.end_offset
        self.report.error(
            "log.torn",
            facts.log.path,
            f"there is no whole batch from byte {torn.position} on ({torn.left_bytes} bytes): {torn.reason}",
            self.plan.about_batch(facts.base_offset, torn.position, offset, self.later_segments),
            offset=offset,
            position=torn.position,
        )

    def _check_records(self, facts: SegmentFacts, batch: InspectedBatch) -> None:
        header = batch.header
        try:
            records = list(batch.records())
        except KafkaError as error:
            self._record_problem(facts, batch, f"the records cannot be decoded: {error.message}")
            return
        self.report.records += len(records)
        deltas = [record.offset - header.base_offset for record in records]
        if self.is_compacted or header.has_delete_horizon:
            in_order = all(before < after for before, after in pairwise(deltas))
            if not in_order or (deltas and not 0 <= deltas[0] <= deltas[-1] <= header.last_offset_delta):
                self._record_problem(facts, batch, "offsets of records are out of order or of range")
        elif deltas != list(range(header.last_offset_delta + 1)):
            self._record_problem(
                facts, batch, f"{len(records)} records do not fill offsets {header.base_offset} to {header.last_offset}"
            )
        if header.is_control and header.is_transactional and len(records) > _MARKER_RECORDS:
            self._record_problem(facts, batch, f"a transaction marker of {len(records)} records")
        largest = max((record.timestamp for record in records), default=header.max_timestamp)
        if largest > header.max_timestamp or (largest < header.max_timestamp and not self.is_compacted):
            self.report.warning(
                "records.timestamp",
                facts.log.path,
                f"the largest timestamp of the records is {largest}, the header says {header.max_timestamp}",
                "believes the header: lookups by time may be off",
                offset=header.base_offset,
                position=batch.position,
            )

    def _record_problem(self, facts: SegmentFacts, batch: InspectedBatch, what: str) -> None:
        self.report.error(
            "batch.records",
            facts.log.path,
            what,
            "does not look into batches: readers get it as it is and fail on it",
            offset=batch.header.base_offset,
            position=batch.position,
        )
