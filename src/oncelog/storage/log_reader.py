"""Reading a log: from offsets to whole batches of one segment, without a look at more headers than necessary.

A consumer goes on where it stopped, and readers are bounded by offsets (high watermark, last stable offset) that stay
the same for many reads. So positions that were found once are remembered. All others are found through the index.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.batch import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, CorruptBatchError, read_header
from oncelog.storage.segment import Segment, segment_number

READ_POSITIONS_MAX: Final = 64
"""Positions that are remembered because a reader stopped there and will probably continue."""

_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")


class ReadResult(NamedTuple):
    """Whole batches from the one that holds `start_offset` on, all below `upper_bound_offset`."""

    data: bytes | memoryview
    start_offset: int
    upper_bound_offset: int


class LogReader:
    """Reads the segments of a list that its owner may change; after removing or cutting one, positions are void."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._positions: dict[int, tuple[Segment, int]] = {}

    def read(
        self, offset: int, max_bytes: int, *, end_offset: int, reads_to_end: bool, min_one_batch: bool
    ) -> ReadResult:
        """`offset` is in the log; `reads_to_end` says that `end_offset` is its end."""
        number = segment_number(self._segments, offset)
        while offset < end_offset and number < len(self._segments):
            segment = self._segments[number]
            start = self._find_position(segment, offset)
            if start < segment.size_bytes:
                limit, limit_offset = self._limit(number, end_offset, reads_to_end)
                if limit - start > max_bytes:
                    return self._read_some(segment, offset, start, max_bytes, limit, limit_offset, min_one_batch)
                self._remember_position(limit_offset, segment, limit)
                return ReadResult(segment.read_bytes(start, limit - start), offset, limit_offset)
            number += 1
        return ReadResult(b"", offset, offset)

    def _limit(self, number: int, end_offset: int, reads_to_end: bool) -> tuple[int, int]:
        """Position and offset in the segment at which reading ends. A batch that holds `end_offset` is not read."""
        segment = self._segments[number]
        if number + 1 < len(self._segments) and end_offset >= self._segments[number + 1].base_offset:
            return segment.size_bytes, self._segments[number + 1].base_offset
        if reads_to_end:
            return segment.size_bytes, end_offset
        return self._find_position(segment, end_offset), end_offset

    def _read_some(
        self,
        segment: Segment,
        offset: int,
        start: int,
        max_bytes: int,
        limit: int,
        limit_offset: int,
        min_one_batch: bool,
    ) -> ReadResult:
        """As many whole batches from position `start` on as fit, which are not all up to `limit`."""
        data: bytes | memoryview = b""
        if max_bytes >= HEADER_BYTES:
            data = segment.read_bytes(start, max_bytes)
            data = memoryview(data)[: self._whole_batches(segment, start, data)]
        if not data and min_one_batch:
            data = segment.read_bytes(start, read_header(segment.read_bytes(start, HEADER_BYTES)).size_bytes)
        if not data:
            return ReadResult(b"", offset, offset)
        end, next_offset = start + len(data), limit_offset
        if end < limit:
            next_offset = read_header(segment.read_bytes(end, HEADER_BYTES)).base_offset
        self._remember_position(next_offset, segment, end)
        return ReadResult(data, offset, next_offset)

    def _whole_batches(self, segment: Segment, start: int, data: bytes) -> int:
        """How many bytes of `data`, which lies at `start`, are whole batches. An index entry saves most of the walk."""
        end = len(data)
        entry = segment.offset_index.lookup_position(start + end - 1)
        cut = max(0, entry.position - start)
        if cut and (cut + HEADER_BYTES > end or read_header(data, cut).last_offset != entry.offset):
            cut = 0
        while cut + _OFFSET_AND_LENGTH.size <= end:
            after = cut + _OFFSET_AND_LENGTH.unpack_from(data, cut)[1] + LENGTH_OVERHEAD_BYTES
            if after > end:
                break
            if after < cut + HEADER_BYTES:
                # Going on from there would lead nowhere, or round in circles.
                raise CorruptBatchError(f"{segment}: no batch at byte {start + cut}")
            cut = after
        return cut

    def available_bytes(self, offset: int, *, end_offset: int, reads_to_end: bool) -> int:
        """How many bytes a read from `offset` on could give, found out without reading them."""
        number = segment_number(self._segments, offset)
        available = 0
        start = self._find_position(self._segments[number], offset)
        while number < len(self._segments) and self._segments[number].base_offset < end_offset:
            available += self._limit(number, end_offset, reads_to_end)[0] - start
            number, start = number + 1, 0
        return available

    def _find_position(self, segment: Segment, offset: int) -> int:
        """Where the first batch that ends at or above `offset` starts; the segment's size if there is none."""
        if offset <= segment.base_offset:
            return 0
        known = self._positions.get(offset)
        if known is not None and known[0] is segment:
            return known[1]
        batch = segment.find(offset)
        position = segment.size_bytes if batch is None else batch.position
        self._remember_position(offset, segment, position)
        return position

    def _remember_position(self, offset: int, segment: Segment, position: int) -> None:
        positions = self._positions
        if len(positions) >= READ_POSITIONS_MAX and offset not in positions:
            del positions[next(iter(positions))]
        positions[offset] = (segment, position)

    def forget_positions(self) -> None:
        self._positions.clear()
