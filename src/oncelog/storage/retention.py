"""Which of the oldest segments a log may let go: below its start, too large as a whole, or too old."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from oncelog.storage.log_config import LogConfig
from oncelog.storage.segment import Segment


def count_deletable(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    now_ms: int,
) -> int:
    """How many segments, from the oldest on, are to be deleted. The active one counts only by age or size.

    A segment that reaches beyond the high watermark stays, so that the log start can never pass it. So does an empty
    active segment, and nothing behind a segment that stays is looked at.
    """
    rules = [_below_start(segments, log_start_offset)]
    if config.is_deleted_by_retention:
        rules += [_too_large(segments, config), _too_old(segments, config, now_ms)]
    count = 0
    for rule in rules:
        while count < len(segments) and rule(count):
            end_offset = segments[count + 1].base_offset if count + 1 < len(segments) else log_end_offset
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
