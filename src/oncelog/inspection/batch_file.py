"""The batches of a `.log` file (or of a metadata snapshot, which has the same format), one after the other.

The file is read as a broker reads its segments, in chunks. Reading stops at the first place where there is no whole
batch of the current format; `BatchFile.problem` describes what is there instead. A file that grows meanwhile is read up
to its size at the start.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from oncelog.core.errors import KafkaError
from oncelog.core.ids import next_sequence
from oncelog.protocol.batch import (
    LENGTH_OVERHEAD_BYTES,
    ControlMarker,
    CorruptBatchError,
    Header,
    crc_of,
    iter_records,
)
from oncelog.storage.append_checks import read_control
from oncelog.storage.file_cache import FileCache
from oncelog.storage.segment_batches import FileBatch, SegmentBatches

_LEAST_BATCH_BYTES: Final = 17
"""Offset, length, leader epoch and magic: fewer bytes cannot be recognised as a batch."""
_MESSAGE_BYTES_MIN: Final = 14
"""The shortest `batch_length` of any format: a message of before Kafka 0.11 without key and value."""


class DecodedRecord(NamedTuple):
    """A record with everything that its batch says about it. `sequence` is -1 without a sequence."""

    offset: int
    timestamp: int
    sequence: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class TornEnd(NamedTuple):
    """From `position` on there is no whole batch."""

    position: int
    left_bytes: int
    reason: str


class InspectedBatch(FileBatch):
    __slots__ = ()

    @property
    def crc(self) -> int:
        return crc_of(self.data, self.start, self.header.size_bytes)

    @property
    def is_valid(self) -> bool:
        return self.start + self.header.size_bytes <= len(self.data) and self.crc == self.header.crc

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.header.base_timestamp if self.header.has_delete_horizon else None

    def marker(self) -> ControlMarker | None:
        """The marker of a control batch; None for data and for a control batch that compaction has emptied."""
        try:
            return read_control(self.header, self.data, self.start)
        except KafkaError:
            return None

    def records(self) -> Iterator[DecodedRecord]:
        """Raises KafkaError at the first record that is damaged."""
        header = self.header
        for record in iter_records(self.data, self.start):
            sequence = -1 if header.base_sequence < 0 else next_sequence(header.base_sequence, record.offset_delta)
            yield DecodedRecord(
                header.base_offset + record.offset_delta,
                header.max_timestamp
                if header.timestamp_type_append
                else header.base_timestamp + record.timestamp_delta,
                sequence,
                record.key,
                record.value,
                record.headers,
            )


class BatchFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: TornEnd | None = None
        """What stopped the last walk through `batches`; None if it reached the end of the file."""

    def batches(self, position: int = 0, *, whole: bool = True) -> Iterator[InspectedBatch]:
        """From `position`, where a batch starts. `whole=False` gives headers alone, which skips over the records."""
        self.problem = None
        file = FileCache(read_only=True).handle(self.path)
        end = os.fstat(file.descriptor()).st_size
        try:
            for batch in SegmentBatches(file, end).batches(position, whole=whole):
                yield InspectedBatch(*batch)
                position = batch.end_position
        except CorruptBatchError:
            self.problem = _problem_at(file.descriptor(), position, end)
        finally:
            file.close()

    def batch_at(self, position: int) -> InspectedBatch | None:
        """The batch that starts there, or None if none does."""
        return next(self.batches(position), None)


def _problem_at(descriptor: int, position: int, end: int) -> TornEnd:
    left = end - position
    head = os.pread(descriptor, min(left, _LEAST_BATCH_BYTES), position)
    if len(head) < _LEAST_BATCH_BYTES:
        return TornEnd(position, left, f"{left} bytes are too few for a batch")
    length = int.from_bytes(head[8:12], "big", signed=True)
    magic = int.from_bytes(head[16:17], "big", signed=True)
    size = length + LENGTH_OVERHEAD_BYTES
    if length < _MESSAGE_BYTES_MIN:
        return TornEnd(position, left, f"a batch cannot have {size} bytes")
    if size > left:
        return TornEnd(position, left, f"the batch has {size} bytes, of which {left} are there")
    if magic in (0, 1):
        return TornEnd(position, left, f"messages of format {magic} (before Kafka 0.11) cannot be read")
    return TornEnd(position, left, f"no batch: magic {magic}, size {size}")
