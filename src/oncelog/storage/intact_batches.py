"""The batches of a segment that are intact, whatever lies between them: for logs of which all that is left is wanted.

A reader of a log stops at damage, since it may not skip anything. Here damage costs the batches that it is in. A batch
is intact if its checksum is right and its offset fits in; the checksum does not cover the offset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import google_crc32c

from oncelog.protocol.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    PREFIX_BYTES,
    CorruptBatchError,
    read_header,
)
from oncelog.storage.segment import Segment
from oncelog.storage.segment_batches import FileBatch

logger = logging.getLogger("oncelog.storage")

READ_BYTES: Final = 1_048_576
"""Read at a time."""
_MAGIC_POSITION: Final = 16


def intact_batches(segment: Segment, end_offset: int) -> Iterator[FileBatch]:
    """The intact batches below `end_offset`, in the order of the file. Damage is logged. Raises OSError."""
    window = _Window(segment)
    before = last = segment.base_offset - 1
    position = size = 0
    try:
        while position < window.end:
            batch = window.batch_at(position, last, end_offset)
            if batch is not None:
                yield batch
                before, last = last, batch.header.base_offset
                size = batch.header.size_bytes
                position += size
            else:
                logger.error(
                    "%s: there is damage at byte %d, behind offset %d, which is left out",
                    segment.log_file.path, position, last,
                )  # fmt: skip
                # It may be the offset of the batch before that is wrong.
                last = before
                position = window.next_intact(position - size + 1, last, end_offset)
    except CorruptBatchError as error:
        logger.error("the rest of a segment behind offset %d is left out: %s", last, error)


class _Window:
    """The bytes of a segment, a part of which is in memory."""

    __slots__ = ("_data", "_segment", "_start", "end")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._data = b""
        self._start = 0
        self.end = segment.size_bytes

    def _hold(self, position: int, size: int) -> int:
        """The index of a position in the part in memory, which has at least `size` bytes from there on."""
        start = position - self._start
        if start < 0 or start + size > len(self._data):
            self._data = self._segment.read_bytes(position, min(max(size, READ_BYTES), self.end - position))
            self._start, start = position, 0
        return start

    def batch_at(self, position: int, last: int, end_offset: int) -> FileBatch | None:
        """The batch at a position, if it is intact, above offset `last` and below `end_offset`.

        Logs of coordinators are many small batches, so that it matters what one of them costs.
        """
        left = self.end - position
        if left < HEADER_BYTES:
            return None
        start = position - self._start
        if not 0 <= start <= len(self._data) - HEADER_BYTES:
            start = self._hold(position, HEADER_BYTES)
        header = read_header(self._data, start)
        size = header.batch_length + LENGTH_OVERHEAD_BYTES
        if (
            header.magic != MAGIC
            or not HEADER_BYTES <= size <= left
            or not last < header.base_offset <= header.base_offset + header.last_offset_delta < end_offset
        ):
            return None
        if start + size > len(self._data):
            start = self._hold(position, size)
        data = self._data
        crc: int = google_crc32c.value(data[start + PREFIX_BYTES : start + size])
        return FileBatch(position, header, data, start) if crc == header.crc else None

    def next_intact(self, position: int, last: int, end_offset: int) -> int:
        """Where the next intact batch begins; the end if there is none."""
        while self.end - position >= HEADER_BYTES:
            start = self._hold(position, HEADER_BYTES)
            magic_at = self._data.find(MAGIC, start + _MAGIC_POSITION)
            if magic_at < 0:
                position = self._start + len(self._data) - _MAGIC_POSITION
                continue
            position = self._start + magic_at - _MAGIC_POSITION
            if self.batch_at(position, last, end_offset) is not None:
                return position
            position += 1
        return self.end
