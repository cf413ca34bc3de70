"""The batches in the `.log` file of a segment: all of them, those from a position on, or the markers among them."""

from __future__ import annotations

import os
import struct
from collections.abc import Generator, Iterator
from typing import Final

import google_crc32c

from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    PREFIX_BYTES,
    BatchHeader,
    CorruptBatchError,
    parse_control,
    read_header,
)
from oncelog.storage.file_cache import FileHandle

HEADER_CHUNK_BYTES: Final = 16 * 1024
"""Read at a time when only headers are wanted: a little more than lies between two index entries."""
WHOLE_CHUNK_BYTES: Final = 1024 * 1024
"""Read at a time when batches are wanted whole."""
_MARKER_CHUNK_BYTES: Final = 256 * 1024
_MARKERS_PER_STEP: Final = 100

_LENGTH: Final = struct.Struct(">i")
_LENGTH_POSITION: Final = 8
_LOW_ATTRIBUTES_POSITION: Final = 22


class FileBatch(NamedTuple):
    """A batch in the `.log` file. Its bytes start at `start` of `data`; they are all there if it was read whole."""

    position: int
    header: BatchHeader
    data: bytes
    start: int

    @property
    def end_position(self) -> int:
        return self.position + self.header.batch_length + LENGTH_OVERHEAD_BYTES


class SegmentBatches:
    __slots__ = ("log_file", "size_bytes")

    def __init__(self, log_file: FileHandle, size_bytes: int) -> None:
        self.log_file = log_file
        self.size_bytes = size_bytes

    def batches(self, position: int = 0, *, whole: bool = False, checked: bool = False) -> Iterator[FileBatch]:
        """The batches from `position` on, where one must start. CorruptBatchError at the first that is none.

        With `whole` all their bytes are read, with `checked` they are compared with their CRC as well. The loop of
        recovery and of the cleaner: logs of coordinators are many small batches, so that it matters what one of them
        costs.
        """
        end = self.size_bytes
        whole = whole or checked
        chunk_bytes = WHOLE_CHUNK_BYTES if whole else HEADER_CHUNK_BYTES
        chunk, chunk_position, chunk_end = b"", position, position
        while position < end:
            if position + HEADER_BYTES > chunk_end:
                chunk, chunk_position = self.read_bytes(position, min(chunk_bytes, end - position)), position
                chunk_end = position + len(chunk)
            start = position - chunk_position
            header = read_header(chunk, start)
            next_position = position + header.batch_length + LENGTH_OVERHEAD_BYTES
            if header.magic != MAGIC or not position + HEADER_BYTES <= next_position <= end:
                raise CorruptBatchError(
                    f"{self.log_file.path}: no batch at byte {position}: magic {header.magic}, "
                    f"size {next_position - position}, {end - position} bytes left"
                )
            if whole and next_position > chunk_end:
                wanted = max(next_position - position, min(chunk_bytes, end - position))
                chunk, chunk_position, start = self.read_bytes(position, wanted), position, 0
                chunk_end = position + wanted
            if checked and (
                google_crc32c.value(chunk[start + PREFIX_BYTES : next_position - chunk_position]) != header.crc
            ):
                raise CorruptBatchError(f"{self.log_file.path}: the CRC of the batch at byte {position} does not match")
            yield FileBatch(position, header, chunk, start)
            position = next_position

    def read_whole(self, batch: FileBatch) -> FileBatch:
        """The same batch with all its bytes."""
        size = batch.end_position - batch.position
        if batch.start + size <= len(batch.data):
            return batch
        return FileBatch(batch.position, batch.header, self.read_bytes(batch.position, size), 0)

    def abort_markers(self) -> Generator[None, None, dict[int, int]]:
        """Producers by the offset of their marker. Nothing but lengths and attributes is looked at in other batches.

        Other work may be done at a yield, and batches may be appended meanwhile: there is none behind the last batch.
        """
        markers: dict[int, int] = {}
        for count, position in enumerate(self._control_positions()):
            if position is None or count % _MARKERS_PER_STEP == _MARKERS_PER_STEP - 1:
                yield
            if position is not None:
                header = read_header(self.read_bytes(position, HEADER_BYTES))
                if header.records_count and parse_control(self.read_bytes(position, header.size_bytes)).is_abort:
                    markers[header.last_offset] = header.producer_id
        return markers

    def _control_positions(self) -> Iterator[int | None]:
        """None stands between two chunks."""
        position, length_at = 0, _LENGTH.unpack_from
        while position < self.size_bytes:
            if position:
                yield None
            chunk = self.read_bytes(position, min(_MARKER_CHUNK_BYTES, self.size_bytes - position))
            start, last_start = 0, len(chunk) - HEADER_BYTES
            while start <= last_start:
                if chunk[start + _LOW_ATTRIBUTES_POSITION] & CONTROL_BIT:
                    yield position + start
                size = length_at(chunk, start + _LENGTH_POSITION)[0] + LENGTH_OVERHEAD_BYTES
                if size < HEADER_BYTES:
                    raise CorruptBatchError(f"{self.log_file.path}: no batch at byte {position + start}: size {size}")
                start += size
            if start == 0:
                raise CorruptBatchError(f"{self.log_file.path}: no batch at byte {position}")
            position += start

    def read_bytes(self, position: int, size: int) -> bytes:
        data = os.pread(self.log_file.descriptor(), size, position)
        if len(data) != size:
            raise CorruptBatchError(f"{self.log_file.path}: {len(data)} of {size} bytes at {position} are there")
        return data
