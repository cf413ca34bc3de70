"""Where something is: an offset, a time, or records by what they hold.

Offsets and times are looked up as a broker does it, by segment, index entry and scan. The result includes these steps:
they show which file a broker would open, and at which position.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from oncelog.core.errors import KafkaError
from oncelog.inspection import entries
from oncelog.inspection.batch_file import BatchFile, DecodedRecord, InspectedBatch
from oncelog.inspection.batch_walk import walk
from oncelog.inspection.layout import Kind, PartitionFolder, StoredFile
from oncelog.inspection.selection import Selection


class Found(NamedTuple):
    """A batch, and the record in it if it was one that was looked for. `way` says how it was found."""

    folder: PartitionFolder
    file: StoredFile
    batch: InspectedBatch
    record: DecodedRecord | None
    way: dict[str, Any]


Tell = Callable[[StoredFile, InspectedBatch, KafkaError], None]
"""Is told of batches whose records cannot be read: what is looked for may be in them."""


def find_offset(folder: PartitionFolder, offset: int, tell: Tell) -> Found | None:
    """The batch that holds the offset, or the next one if compaction has removed it."""
    logs = folder.of_kind(Kind.LOG)
    first = max(0, bisect_right(logs, offset, key=lambda file: file.base_offset) - 1)
    for file in logs[first:]:
        position, way = _index_lookup(file, offset)
        for batch in BatchFile(file.path).batches(position):
            way["batches_scanned"] += 1
            if batch.header.last_offset >= offset:
                return Found(folder, file, batch, _record_at(file, batch, offset, tell), way)
    return None


def _index_lookup(file: StoredFile, offset: int) -> tuple[int, dict[str, Any]]:
    way: dict[str, Any] = {"segment": file.path.name, "index_entry": None, "batches_scanned": 0}
    index = file.sibling(".index")
    offsets = entries.read_offset_index(index, file.base_offset).entries if index.exists() else []
    floor = bisect_right(offsets, offset, key=lambda entry: entry.offset) - 1
    if floor < 0:
        return 0, way
    entry = offsets[floor]
    at_entry = BatchFile(file.path).batch_at(entry.position)
    if at_entry is None or at_entry.header.last_offset != entry.offset:
        way["index_problem"] = f"the entry for offset {entry.offset} is wrong: scanning the segment from its start"
        return 0, way
    way["index_entry"] = {"offset": entry.offset, "position": entry.position}
    return entry.position, way


def _record_at(file: StoredFile, batch: InspectedBatch, offset: int, tell: Tell) -> DecodedRecord | None:
    try:
        return next((record for record in batch.records() if record.offset >= offset), None)
    except KafkaError as error:
        tell(file, batch, error)
        return None


def find_time(folder: PartitionFolder, timestamp: int, tell: Tell) -> Found | None:
    """The first record that is not older than `timestamp` (ms)."""
    for file in folder.of_kind(Kind.LOG):
        start, way = _time_lookup(file, timestamp)
        for batch in BatchFile(file.path).batches():
            if batch.header.max_timestamp < timestamp or batch.header.last_offset < start:
                continue
            try:
                record = next((r for r in batch.records() if r.timestamp >= timestamp), None)
            except KafkaError as error:
                tell(file, batch, error)
                continue
            if record is not None:
                return Found(folder, file, batch, record, way)
    return None


def _time_lookup(file: StoredFile, timestamp: int) -> tuple[int, dict[str, Any]]:
    """Nothing up to the offset of the last entry below `timestamp` can be new enough."""
    way: dict[str, Any] = {"segment": file.path.name, "time_index_entry": None}
    index = file.sibling(".timeindex")
    times = entries.read_time_index(index, file.base_offset).entries if index.exists() else []
    below = [entry for entry in times if entry.timestamp < timestamp]
    if not below:
        return file.base_offset, way
    way["time_index_entry"] = {"timestamp": below[-1].timestamp, "offset": below[-1].offset}
    return below[-1].offset + 1, way


def find_records(folder: PartitionFolder, selection: Selection, tell: Tell) -> Iterator[Found]:
    """All records that are selected, and the markers of selected producers."""
    low = selection.offsets[0] or 0
    for file, batch in walk(folder, start_offset=low):
        if not selection.takes_batch(batch.header):
            continue
        if batch.header.is_control:
            if selection.producer_ids is not None and not selection.needs_records:
                yield Found(folder, file, batch, None, {})
            continue
        try:
            for record in batch.records():
                if selection.takes_record(record):
                    yield Found(folder, file, batch, record, {})
        except KafkaError as error:
            tell(file, batch, error)
