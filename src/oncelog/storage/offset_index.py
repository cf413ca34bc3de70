"""The `.index` file of a segment: from offsets to positions in the `.log` file. Entries of 8 bytes, big-endian.

    int32  last offset of a batch, relative to the segment's base offset
    int32  position of that batch in the `.log`

Both ascend. The first batch of a segment has no entry; a batch gets one when more than `index.interval.bytes` were
appended since the last that did. A relative offset of 0 therefore only occurs in the zeros of a preallocated file.
"""

from __future__ import annotations

import struct
from typing import Final

from oncelog.core.invariant import invariant
from oncelog.core.named_tuple import NamedTuple
from oncelog.storage.index_file import CorruptIndexError, IndexFile

RELATIVE_OFFSET_MAX: Final = 2**31 - 1

_OFFSET: Final = 0
_POSITION: Final = 1


class OffsetPosition(NamedTuple):
    """A batch's last offset and where the batch starts. (base offset, 0) stands for the start of the segment."""

    offset: int
    position: int


class OffsetIndex(IndexFile[OffsetPosition]):
    entry_format = struct.Struct(">ii")
    offset_field = _OFFSET
    before_first = (0, 0)
    repeats_second = False

    def make_entry(self, fields: tuple[int, ...]) -> OffsetPosition:
        return OffsetPosition(self.base_offset + fields[_OFFSET], fields[_POSITION])

    @property
    def is_full(self) -> bool:
        return len(self) >= self.entries_max

    def append(self, last_offset: int, position: int) -> None:
        relative = last_offset - self.base_offset
        invariant(0 < relative <= RELATIVE_OFFSET_MAX, "%s: offset %s is out of range", self.file.path, last_offset)
        self._append(relative, position)

    def lookup(self, offset: int) -> OffsetPosition:
        """The last entry at or below `offset`: a scan for it starts at that position."""
        return self._lookup(offset - self.base_offset, _OFFSET)

    def lookup_position(self, position: int) -> OffsetPosition:
        """The last entry at or below `position`: a batch starts there."""
        return self._lookup(position, _POSITION)

    def check_against(self, log_size_bytes: int) -> None:
        """The quick check at opening: the last entry lies in the segment."""
        offset, position = self.last
        if len(self) and (offset <= self.base_offset or not 0 < position < log_size_bytes):
            raise CorruptIndexError(
                f"{self.file.path}: the last entry ({offset}, {position}) lies outside a log of {log_size_bytes} bytes"
            )
