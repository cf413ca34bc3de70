"""Which record of a log is the first that is not older than a time, and which is the latest of all: ListOffsets.

Segments are asked in their order: each knows its largest timestamp, and finds the batch by its time index. What is read
of batches, and how much at a stretch, is for the `TimesReader` to say.
"""

from __future__ import annotations

from oncelog.storage.batch_times import FoundTimestamp, TimesReader
from oncelog.storage.log import Log


def first_record_from(
    log: Log, timestamp: int, *, end_offset: int, start_offset: int = 0, reader: TimesReader | None = None
) -> FoundTimestamp | None:
    """The first record from `start_offset` on and below `end_offset` whose timestamp is not below `timestamp`.

    Raises LongLookup if the reader has a limit.
    """
    log.check_readable()
    reader = reader or TimesReader(log.topic_partition)
    for segment in log.segments:
        if not segment.is_largest_known:
            reader.pass_index(start_offset)
        if segment.largest.timestamp >= timestamp:
            found = segment.find_timestamp(timestamp, max(start_offset, log.log_start_offset), reader)
            if found is not None:
                return found if found.offset < end_offset else None
    return None


def latest_record(log: Log, reader: TimesReader | None = None) -> FoundTimestamp | None:
    """The first record that has the largest timestamp of the log. Raises LongLookup if the reader has a limit."""
    log.check_readable()
    reader = reader or TimesReader(log.topic_partition)
    for segment in log.segments:
        if not segment.is_largest_known:
            reader.pass_index(0)
            _ = segment.largest
    latest = max(log.segments, key=lambda segment: segment.largest.timestamp)
    return latest.find_largest_timestamp(reader)
