"""The `.timeindex` file of a segment: from timestamps to offsets. Entries of 12 bytes, big-endian.

    int64  the largest timestamp up to here
    int32  last offset of the batch that has it, relative to the segment's base offset

Both ascend, the timestamp strictly: with each entry of the offset index one is added here, unless the maximum has not
moved, and once more when the segment is rolled or closed, so that the last entry holds the maximum of the whole
segment. One slot is kept free for that last one.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from oncelog.core.ids import NO_TIMESTAMP
from oncelog.core.invariant import invariant
from oncelog.storage.index_file import CorruptIndexError, IndexFile

_TIMESTAMP: Final = 0
_OFFSET: Final = 1


class TimestampEntry(NamedTuple):
    """A maximum and who reached it. (-1, base offset) stands for a segment without timestamps."""

    timestamp: int
    offset: int


class TimeIndex(IndexFile):
    entry_format = struct.Struct(">qi")
    offset_field = _OFFSET

    @property
    def is_full(self) -> bool:
        return len(self) >= self.entries_max - 1

    @property
    def last(self) -> TimestampEntry:
        entry = self._last_entry()
        if entry is None:
            return TimestampEntry(NO_TIMESTAMP, self.base_offset)
        return TimestampEntry(entry[_TIMESTAMP], self.base_offset + entry[_OFFSET])

    def append_if_greater(self, timestamp: int, offset: int) -> None:
        before = self._last_entry()
        if timestamp > (NO_TIMESTAMP if before is None else before[_TIMESTAMP]):
            relative = offset - self.base_offset
            if before is not None:
                invariant(relative >= before[_OFFSET], "%s: %s is below %s", self.file.path, relative, before)
            self._append(timestamp, relative)

    def lookup(self, timestamp: int) -> TimestampEntry:
        """The last entry at or below `timestamp`: no batch up to its offset has a greater one."""
        return self._at(self._floor(timestamp, _TIMESTAMP))

    def check_order(self) -> None:
        """Read everything: timestamps must ascend strictly, offsets must not fall."""
        before = (NO_TIMESTAMP, 0)
        for timestamp, relative in self._entries():
            if timestamp <= before[0] or relative < before[1]:
                raise CorruptIndexError(f"{self.file.path}: entry ({timestamp}, {relative}) does not follow {before}")
            before = (timestamp, relative)

    def check_ends(self) -> None:
        """The quick check at opening: the last entry follows the first."""
        if len(self):
            first, last = self._at(0), self.last
            if last.timestamp < first.timestamp or not self.base_offset <= first.offset <= last.offset:
                raise CorruptIndexError(f"{self.file.path}: the last entry {last} does not follow the first {first}")

    def entries(self) -> list[TimestampEntry]:
        return [TimestampEntry(timestamp, self.base_offset + relative) for timestamp, relative in self._entries()]

    def _at(self, index: int) -> TimestampEntry:
        if index < 0:
            return TimestampEntry(NO_TIMESTAMP, self.base_offset)
        timestamp, relative = self._entry(index)
        return TimestampEntry(timestamp, self.base_offset + relative)
