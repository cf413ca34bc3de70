"""Which part of a log may be compacted, whether that is due, and which segments become one.

A log is clean up to its first dirty offset, which the `cleaner-offset-checkpoint` keeps, and can be cleaned up to a
segment that is the active one, holds the last stable offset, or has a record younger than `min.compaction.lag.ms`.
Cleaning is due when the dirty bytes in between exceed their share of all that is below the bound
(`min.cleanable.dirty.ratio`), or when the oldest of them is older than `max.compaction.lag.ms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oncelog.core.dataclass import dataclass
from oncelog.core.named_tuple import NamedTuple
from oncelog.storage.log import Log
from oncelog.storage.log_config import LogConfig
from oncelog.storage.offset_index import RELATIVE_OFFSET_MAX
from oncelog.storage.segment import Segment, segment_number
from oncelog.storage.segment_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, file_name


@dataclass(frozen=True, slots=True)
class Cleanable:
    """What could be cleaned of a log at this moment."""

    log: Log
    first_dirty_offset: int
    upper_bound: int
    """Base offset of the first segment that must stay as it is."""
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        if self.is_overdue and self.dirty_bytes:
            return True
        return self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def find_cleanable(log: Log, first_dirty_offset: int | None, *, last_stable_offset: int, now_ms: int) -> Cleanable:
    """`first_dirty_offset` is None if the log was never cleaned. One that the log does not have means the same."""
    segments = log.segments
    if first_dirty_offset is None or not log.log_start_offset <= first_dirty_offset <= log.log_end_offset:
        first_dirty_offset = log.log_start_offset
    first_dirty = segment_number(segments, first_dirty_offset)
    bound = _first_uncleanable(segments, first_dirty, log.config, last_stable_offset, now_ms)
    return Cleanable(
        log,
        first_dirty_offset,
        segments[bound].base_offset,
        clean_bytes=sum(segment.size_bytes for segment in segments if segment.base_offset < first_dirty_offset),
        dirty_bytes=sum(segment.size_bytes for segment in segments[first_dirty:bound]),
        is_overdue=_is_overdue(segments[first_dirty:-1], log.config, now_ms),
    )


def _first_uncleanable(
    segments: Sequence[Segment], first_dirty: int, config: LogConfig, last_stable_offset: int, now_ms: int
) -> int:
    bound = segment_number(segments, last_stable_offset)
    if config.min_compaction_lag_ms > 0:
        for number in range(first_dirty, bound):
            if segments[number].largest_timestamp_ms > now_ms - config.min_compaction_lag_ms:
                return number
    return bound


def _is_overdue(dirty: Sequence[Segment], config: LogConfig, now_ms: int) -> bool:
    """The age of a segment is that of its first batch, because that is known without reading the segment."""
    limit_ms = now_ms - config.max_compaction_lag_ms
    return any(0 < segment.first_timestamp_ms < limit_ms for segment in dirty)


class SourceSegment(NamedTuple):
    """A segment to be cleaned, by what never changes of it: it is not appended to any more."""

    base_offset: int
    size_bytes: int
    next_base_offset: int


def group_segments(sources: Sequence[SourceSegment], folder: Path, config: LogConfig) -> list[list[SourceSegment]]:
    """Neighbours whose sizes, and those of their indexes, add up to no more than one segment may have."""
    groups: list[list[SourceSegment]] = []
    sizes = [0, 0, 0]
    limits = (config.segment_bytes, config.segment_index_bytes, config.segment_index_bytes)
    for source in sources:
        indexes = (folder / file_name(source.base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
        added = [source.size_bytes, *[path.stat().st_size if path.exists() else 0 for path in indexes]]
        together = [size + more for size, more in zip(sizes, added, strict=True)]
        if (
            groups
            and all(size <= limit for size, limit in zip(together, limits, strict=True))
            and (
                not source.size_bytes or source.next_base_offset - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
            )
        ):
            groups[-1].append(source)
            sizes = together
        else:
            groups.append([source])
            sizes = added
    return groups
