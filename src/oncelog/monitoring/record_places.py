"""Where records are that are asked for by number: offsets count markers, aborted records and gaps of compaction too."""

from __future__ import annotations

from collections import deque
from typing import Final

from oncelog.client.consumer_records import iter_records
from oncelog.client.fetcher import RangeReader
from oncelog.core.ids import TopicPartition

WINDOW_OFFSETS_MIN: Final = 100
"""Offsets looked through at first, if fewer records are wanted; it doubles until there are enough of them."""


def start_of_last(reader: RangeReader, partition: TopicPartition, start: int, end: int, count: int) -> int:
    """The offset of the first of the last `count` records that the reader sees in [start, end); else `start`."""
    if count >= end - start:
        return start
    high, missing, width = end, count, max(count, WINDOW_OFFSETS_MIN)
    found = end
    while missing > 0 and high > start:
        low = max(start, high - width)
        offsets = _last_offsets(reader, partition, low, high, missing)
        if offsets:
            found = offsets[0]
            missing -= len(offsets)
        high, width = low, width * 2
    return found if missing <= 0 else start


def _last_offsets(reader: RangeReader, partition: TopicPartition, low: int, high: int, count: int) -> list[int]:
    offsets: deque[int] = deque(maxlen=count)
    for chunk in reader.read(*partition, low, high):
        offsets.extend(record.offset for record in iter_records(chunk))
    return list(offsets)
