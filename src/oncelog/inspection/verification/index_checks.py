"""The offset index and the time index of a segment against its batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, TypeVar

from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.inspection.entries import IndexContent
from oncelog.inspection.verification.finding import Finding, Report, Severity
from oncelog.inspection.verification.segment_facts import SegmentFacts, offsets_ascend, times_ascend
from oncelog.inspection.verification.start_plan import StartPlan
from oncelog.storage.offset_index import OffsetPosition
from oncelog.storage.time_index import TimestampEntry

INDEX_INTERVAL_BYTES: Final = TOPIC_CONFIG.defaults.integer("index.interval.bytes")
Entry = TypeVar("Entry", OffsetPosition, TimestampEntry)
_REBUILT: Final = "rebuilds the indexes of the segment from the log when it first needs them"


def check_indexes(facts: SegmentFacts, plan: StartPlan, report: Report, *, is_last: bool, was_clean: bool) -> None:
    if facts.offset_index is None:
        _missing(facts, ".index", plan, report)
    else:
        report.files += 1
        _check_offset_index(facts, facts.offset_index, plan, report)
        if not is_last or was_clean:
            _check_density(facts, facts.offset_index, report)
    if facts.time_index is None:
        _missing(facts, ".timeindex", plan, report)
    else:
        report.files += 1
        _check_time_index(facts, facts.time_index, plan, report, is_final=not is_last or was_clean)


def _missing(facts: SegmentFacts, suffix: str, plan: StartPlan, report: Report) -> None:
    """A segment is made file by file, its log first."""
    severity = plan.severity_of_missing(facts.base_offset, facts.base_offset, Severity.WARNING)
    check = f"{suffix.removeprefix('.')}.missing"
    report.add(Finding(severity, check, facts.path(suffix), "the file is missing", _REBUILT))


def _check_form(
    facts: SegmentFacts,
    suffix: str,
    entries: Sequence[Entry],
    odd_bytes: int,
    follows: Callable[[Entry, Entry], bool],
    plan: StartPlan,
    report: Report,
) -> None:
    """Whole entries, and each of them behind the one before it."""
    path, kind = facts.path(suffix), suffix.removeprefix(".")
    if odd_bytes:
        report.warning(f"{kind}.torn", path, f"{odd_bytes} bytes follow the last whole entry", _REBUILT)
    for before, after in pairwise(entries):
        if not follows(before, after):
            report.error(
                f"{kind}.order",
                path,
                f"entry {tuple(after)} does not follow {tuple(before)}",
                plan.about_index(facts.base_offset),
                offset=after.offset,
            )


def _check_offset_index(
    facts: SegmentFacts, index: IndexContent[OffsetPosition], plan: StartPlan, report: Report
) -> None:
    _check_form(facts, ".index", index.entries, index.odd_bytes, offsets_ascend, plan, report)
    path = facts.path(".index")
    for offset, position in index.entries:
        found = facts.last_offsets.get(position)
        if found == offset:
            continue
        there = "no batch starts there" if found is None else f"the batch there ends at offset {found}"
        report.error(
            "index.entry",
            path,
            f"the entry for offset {offset} points to byte {position}, but {there}",
            plan.about_index(facts.base_offset),
            offset=offset,
            position=position,
        )


def _check_density(facts: SegmentFacts, index: IndexContent[OffsetPosition], report: Report) -> None:
    """Entries lie about an interval and a batch apart. The interval is the topic's, and a restart begins to count anew,
    so this is only a remark."""
    positions = [0, *(entry.position for entry in index.entries), facts.end_position]
    widest = max(after - before for before, after in pairwise(positions))
    if widest > 2 * (INDEX_INTERVAL_BYTES + facts.largest_batch_bytes):
        report.note(
            "index.sparse",
            facts.path(".index"),
            f"{widest} bytes of the log have no entry, more than index.interval.bytes={INDEX_INTERVAL_BYTES} explains",
            "searches longer for offsets in between, or rebuilds the index if it is empty",
        )


def _check_time_index(
    facts: SegmentFacts, index: IndexContent[TimestampEntry], plan: StartPlan, report: Report, *, is_final: bool
) -> None:
    _check_form(facts, ".timeindex", index.entries, index.odd_bytes, times_ascend, plan, report)
    path = facts.path(".timeindex")
    for timestamp, offset in index.entries:
        fact = facts.times.get(offset)
        if fact is None or fact.last_offset != offset:
            what = f"no batch ends at offset {offset}"
        elif fact.batch_maximum != timestamp:
            what = f"the batch that ends at offset {offset} has the largest timestamp {fact.batch_maximum}"
        elif fact.running_maximum != timestamp:
            what = f"the largest timestamp up to offset {offset} is {fact.running_maximum}"
        else:
            continue
        report.error(
            "timeindex.entry",
            path,
            f"entry ({timestamp}, {offset}): {what}",
            plan.about_index(facts.base_offset) + "; until then offsets by time are wrong",
            offset=offset,
        )
    last = index.entries[-1].timestamp if index.entries else -1
    if is_final and facts.largest_timestamp > last:
        report.error(
            "timeindex.end",
            path,
            f"the last entry is {last}, but the segment reaches {facts.largest_timestamp}",
            plan.about_index(facts.base_offset) + "; until then retention by time takes the segment for older",
        )
