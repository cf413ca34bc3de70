"""The batches of a `.log` file (or of a metadata snapshot, which has the same format), one after the other.

The file is read in chunks and never held as a whole: its size does not matter. Reading stops at the first place where
there is no whole batch of the current format; `BatchFile.problem` says what is there instead. The size is taken when
reading starts, so a file that grows meanwhile is read up to where it was then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from oncelog.core.errors import KafkaError
from oncelog.core.ids import next_sequence
from oncelog.protocol.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    ControlMarker,
    Header,
    crc_of,
    decode_records,
    parse_control,
    read_header,
)

CHUNK_BYTES: Final = 1024 * 1024
_LEAST_BATCH_BYTES: Final = 17
"""Offset, length, leader epoch and magic: the shortest thing that can be told from rubbish."""
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
    is_short: bool
    """The file merely ends too early, as after a crash or while a broker writes."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    position: int
    header: BatchHeader
    data: bytes
    """All bytes of the batch, or only its header."""

    @property
    def end_position(self) -> int:
        return self.position + self.header.size_bytes

    @property
    def crc(self) -> int:
        return crc_of(self.data, 0, self.header.size_bytes)

    @property
    def is_valid(self) -> bool:
        return len(self.data) == self.header.size_bytes and self.crc == self.header.crc

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.header.base_timestamp if self.header.has_delete_horizon else None

    def marker(self) -> ControlMarker | None:
        """What a control batch says; None for data and for one that compaction has emptied."""
        if not self.header.is_control or not self.header.records_count:
            return None
        try:
            return parse_control(self.data)
        except KafkaError:
            return None

    def records(self) -> Iterator[DecodedRecord]:
        """Raises KafkaError if the records are damaged."""
        header = self.header
        for record in decode_records(self.data):
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

    def batches(self, position: int = 0, *, whole: bool = True) -> Iterator[StoredBatch]:
        """From `position`, where a batch starts. `whole=False` gives headers alone, which skips over the records."""
        self.problem = None
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield from self._walk(descriptor, os.fstat(descriptor).st_size, position, whole)
        finally:
            os.close(descriptor)

    def _walk(self, descriptor: int, end: int, position: int, whole: bool) -> Iterator[StoredBatch]:
        chunk, chunk_position = b"", position
        while position < end:
            start = position - chunk_position
            if start + HEADER_BYTES > len(chunk):
                chunk = os.pread(descriptor, min(CHUNK_BYTES, end - position), position)
                chunk_position, start = position, 0
            self.problem = _problem_at(chunk, start, position, end)
            if self.problem is not None:
                return
            header = read_header(chunk, start)
            size = header.size_bytes
            if whole and start + size > len(chunk):
                chunk = os.pread(descriptor, max(size, min(CHUNK_BYTES, end - position)), position)
                chunk_position, start = position, 0
            yield StoredBatch(position, header, chunk[start : start + (size if whole else HEADER_BYTES)])
            position += size

    def batch_at(self, position: int) -> StoredBatch | None:
        """The batch that starts there, or None if none does."""
        return next(self.batches(position), None)


def _problem_at(chunk: bytes, start: int, position: int, end: int) -> TornEnd | None:
    left = end - position
    if left < _LEAST_BATCH_BYTES:
        return TornEnd(position, left, f"{left} bytes are too few for a batch", True)
    length = int.from_bytes(chunk[start + 8 : start + 12], "big", signed=True)
    magic = int.from_bytes(chunk[start + 16 : start + 17], "big", signed=True)
    size = length + LENGTH_OVERHEAD_BYTES
    if length < _MESSAGE_BYTES_MIN:
        return TornEnd(position, left, f"a batch of {size} bytes cannot be", False)
    if size > left:
        return TornEnd(position, left, f"the batch has {size} bytes, of which {left} are there", True)
    if magic in (0, 1):
        return TornEnd(position, left, f"messages of format {magic} (before Kafka 0.11) cannot be read", False)
    if magic != MAGIC or size < HEADER_BYTES:
        return TornEnd(position, left, f"no batch: magic {magic}, size {size}", False)
    return None
