"""The `.timeindex` file of a segment: from timestamps to offsets. Entries of 12 bytes, big-endian.

    int64  the largest timestamp up to here
    int32  last offset of the batch that has it, relative to the segment's base offset

Both ascend, the timestamp strictly: with each entry of the offset index one is added here, unless the maximum has not
moved, and once more when the segment is rolled or closed, so that the last entry holds the maximum of the whole
segment. One slot is kept free for that last one.
"""

from __future__ import annotations

import struct
from typing import Final

from oncelog.core.ids import NO_TIMESTAMP
from oncelog.core.invariant import invariant
from oncelog.core.named_tuple import NamedTuple
from oncelog.storage.index_file import CorruptIndexError, IndexFile

_TIMESTAMP: Final = 0
_OFFSET: Final = 1


class TimestampEntry(NamedTuple):
    """A maximum and who reached it. (-1, base offset) stands for a segment without timestamps."""

    timestamp: int
    offset: int


class TimeIndex(IndexFile[TimestampEntry]):
    entry_format = struct.Struct(">qi")
    offset_field = _OFFSET
    before_first = (NO_TIMESTAMP, 0)
    repeats_second = True

    def make_entry(self, fields: tuple[int, ...]) -> TimestampEntry:
        return TimestampEntry(fields[_TIMESTAMP], self.base_offset + fields[_OFFSET])

    @property
    def is_full(self) -> bool:
        return len(self) >= self.entries_max - 1

    def append_if_greater(self, timestamp: int, offset: int) -> None:
        before = self._last_entry()
        if timestamp > (NO_TIMESTAMP if before is None else before[_TIMESTAMP]):
            relative = offset - self.base_offset
            if before is not None:
                invariant(relative >= before[_OFFSET], "%s: %s is below %s", self.file.path, relative, before)
            self._append(timestamp, relative)

    def lookup(self, timestamp: int) -> TimestampEntry:
        """The last entry at or below `timestamp`: no batch up to its offset has a greater one."""
        return self._lookup(timestamp, _TIMESTAMP)

    def check_ends(self) -> None:
        """The quick check at opening: the last entry follows the first."""
        if len(self):
            first, last = self.make_entry(self._entry(0)), self.last
            if last.timestamp < first.timestamp or not self.base_offset <= first.offset <= last.offset:
                raise CorruptIndexError(f"{self.file.path}: the last entry {last} does not follow the first {first}")
