"""Retention: the oldest segments are deleted if they lie below the start, or the log is too large or too old."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import accumulate

from oncelog.core.errors import KafkaError
from oncelog.storage.log import SEGMENTS_DELETED_AT_ONCE_MAX, Log
from oncelog.storage.log_config import LogConfig
from oncelog.storage.segment import Segment

logger = logging.getLogger("oncelog.storage")


def delete_old_segments(log: Log, now_ms: int, *, high_watermark: int) -> int:
    """Segments that reach beyond the high watermark stay. Returns how many were deleted: if these are
    SEGMENTS_DELETED_AT_ONCE_MAX, there may be more."""
    segments = log.segments
    count = _count_deletable(log, high_watermark, now_ms)
    if count == len(segments) and not _try_to_roll(log, now_ms):
        count -= 1
    if count:
        log.delete_records(segments[count].base_offset)
    return count


def _try_to_roll(log: Log, now_ms: int) -> bool:
    """If rolling fails, as on a full disk, the active segment stays. Deleting those before it may help."""
    if log.has_failed:
        return False
    try:
        log.roll(now_ms)
    except KafkaError as error:
        logger.warning("the active segment is kept although it is due for deletion: %s", error)
        return False
    return True


def _count_deletable(log: Log, high_watermark: int, now_ms: int) -> int:
    """How many segments, from the oldest on, are to be deleted at once. The active one counts only by age or size.

    A segment that reaches beyond the high watermark stays, so that the log start can never pass it. So does an empty
    active segment, and nothing behind a segment that stays is looked at.
    """
    segments, config = log.segments, log.config
    rules = [_below_start(segments, log.log_start_offset)]
    if config.is_deleted_by_retention:
        rules += [_too_large(segments, config), _too_old(segments, config, now_ms)]
    count, count_max = 0, min(len(segments), SEGMENTS_DELETED_AT_ONCE_MAX)
    for rule in rules:
        while count < count_max and rule(count):
            end_offset = segments[count + 1].base_offset if count + 1 < len(segments) else log.log_end_offset
            is_empty_active = count + 1 == len(segments) and segments[count].size_bytes == 0
            if is_empty_active or end_offset > high_watermark:
                break
            count += 1
    return count


def _below_start(segments: Sequence[Segment], log_start_offset: int) -> Callable[[int], bool]:
    return lambda number: number + 1 < len(segments) and segments[number + 1].base_offset <= log_start_offset


def _too_large(segments: Sequence[Segment], config: LogConfig) -> Callable[[int], bool]:
    sizes_from = list(accumulate(segment.size_bytes for segment in reversed(segments)))[::-1]

    def is_over(number: int) -> bool:
        excess_bytes = sizes_from[number] - config.retention_bytes
        return config.retention_bytes >= 0 and excess_bytes >= segments[number].size_bytes

    return is_over


def _too_old(segments: Sequence[Segment], config: LogConfig, now_ms: int) -> Callable[[int], bool]:
    def is_over(number: int) -> bool:
        return config.retention_ms >= 0 and now_ms - segments[number].largest_timestamp_ms > config.retention_ms

    return is_over
