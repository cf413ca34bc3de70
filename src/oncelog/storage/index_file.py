"""What the two indexes of a segment share: a file of fixed-size entries, sorted, that is only appended to and cut.

New entries are kept in memory and written a page at a time, and whenever the log is flushed, rolled or closed. Nothing
is lost that way: after a crash the entries above the recovery point are rebuilt from the log in any case. Entries that
are in the file are read from there when they are needed, so that an index costs no memory.

Deviation from Kafka: the file of an active segment is not preallocated to `segment.index.bytes` and filled with zeros.
It has the entries that were written and nothing else, which is what Kafka's own files are after a roll or a clean
stop. Preallocated files of a Kafka that is running or has crashed are read up to the first zero entry.
"""

from __future__ import annotations

import logging
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from oncelog.storage.file_cache import FileHandle

logger = logging.getLogger("oncelog.storage")

UNWRITTEN_BYTES_MAX: Final = 4096
"""Entries kept in memory before they are written."""

_READ_CHUNK_ENTRIES: Final = 1024


class CorruptIndexError(Exception):
    """The file cannot be trusted: rebuild it from the log."""


def count_entries(count: int, is_zero: Callable[[int], bool]) -> int:
    """Entries of a file that has room for `count`: one that was preallocated ends with zeros.

    Only the first entry can be zero and an entry, if another follows it.
    """
    if count <= 1 or not is_zero(count - 1):
        return count
    found = bisect_left(range(count), True, lo=1, key=is_zero)
    return 0 if found == 1 and is_zero(0) else found


E = TypeVar("E")


class IndexFile(Generic[E]):
    """Entries of `entry_format`, ascending in each of their fields. Subclasses give the fields a meaning."""

    entry_format: struct.Struct
    offset_field: int
    """Which one is an offset, relative to the base offset."""
    before_first: tuple[int, int]
    """The fields before the first entry."""
    repeats_second: bool
    """Whether the second field may stay the same from one entry to the next. The first one never does."""

    def __init__(self, file: FileHandle, base_offset: int, size_bytes_max: int) -> None:
        self.file = file
        self.base_offset = base_offset
        self.entries_max = size_bytes_max // self.entry_format.size
        self._written = 0
        self._tail = bytearray()
        self._last: tuple[int, ...] | None = None

    def create(self) -> None:
        self.file.create()
        self._written = 0
        self._tail.clear()
        self._last = None

    def load(self) -> None:
        """Find out how many entries the file has. FileNotFoundError or CorruptIndexError if it must be rebuilt."""
        size = os.fstat(self.file.descriptor()).st_size
        entry_size = self.entry_format.size
        self._tail.clear()
        self._last = None
        self._written = room = size // entry_size
        self._written = count_entries(room, self._is_zero)
        if self._written < room:
            os.ftruncate(self.file.descriptor(), self._written * entry_size)
        elif size % entry_size:
            raise CorruptIndexError(f"{self.file.path}: {size} bytes are no multiple of {entry_size}")

    def __len__(self) -> int:
        return self._written + len(self._tail) // self.entry_format.size

    def make_entry(self, fields: tuple[int, ...]) -> E:
        """An entry with its offset as it is in the log."""
        raise NotImplementedError

    @property
    def last(self) -> E:
        return self.make_entry(self._last_entry() or self.before_first)

    def entries(self) -> list[E]:
        return [self.make_entry(fields) for fields in self._entries()]

    def check_order(self) -> None:
        """Read everything: the fields must ascend."""
        before: tuple[int, ...] = self.before_first
        for fields in self._entries():
            if fields[0] <= before[0] or fields[1] < before[1] + (not self.repeats_second):
                raise CorruptIndexError(f"{self.file.path}: entry {fields} does not follow {before}")
            before = fields

    def write_tail(self) -> None:
        """Entries kept in memory go to the file. They stay in memory if that fails."""
        if self._tail:
            position = self._written * self.entry_format.size
            written = os.pwrite(self.file.descriptor(), self._tail, position)
            if written != len(self._tail):
                raise OSError(f"{self.file.path}: wrote {written} of {len(self._tail)} bytes of index entries")
            self._written += written // self.entry_format.size
            self._tail.clear()

    def truncate_to(self, offset: int) -> None:
        """Forget entries whose batch ends at or above `offset`."""
        relative = offset - self.base_offset
        self._cut(bisect_left(range(len(self)), relative, key=lambda index: self._entry(index)[self.offset_field]))

    def close(self) -> None:
        self.file.close()

    def _append(self, *fields: int) -> None:
        self._tail += self.entry_format.pack(*fields)
        self._last = fields
        if len(self._tail) >= UNWRITTEN_BYTES_MAX:
            try:
                self.write_tail()
            except OSError as error:
                # The batch is in the log already. Its entry can wait in memory, where it does the same service.
                logger.warning("%s cannot be written now: %s", self.file.path, error)

    def _entry(self, index: int) -> tuple[int, ...]:
        size = self.entry_format.size
        if index >= self._written:
            return self.entry_format.unpack_from(self._tail, (index - self._written) * size)
        raw = os.pread(self.file.descriptor(), size, index * size)
        if len(raw) != size:
            raise CorruptIndexError(f"{self.file.path}: entry {index} of {self._written} is missing")
        return self.entry_format.unpack(raw)

    def _last_entry(self) -> tuple[int, ...] | None:
        if self._last is None and (count := len(self)):
            self._last = self._entry(count - 1)
        return self._last

    def _entries(self) -> Iterator[tuple[int, ...]]:
        size = self.entry_format.size
        for index in range(0, self._written, _READ_CHUNK_ENTRIES):
            count = min(_READ_CHUNK_ENTRIES, self._written - index)
            raw = os.pread(self.file.descriptor(), count * size, index * size)
            if len(raw) != count * size:
                raise CorruptIndexError(f"{self.file.path}: entries from {index} on are missing")
            yield from self.entry_format.iter_unpack(raw)
        yield from self.entry_format.iter_unpack(bytes(self._tail))

    def _lookup(self, target: int, field: int) -> E:
        """The last entry whose field is not above `target`."""
        number = self._floor(target, field)
        return self.make_entry(self._entry(number) if number >= 0 else self.before_first)

    def _floor(self, target: int, field: int) -> int:
        """Number of the last entry whose field is not above `target`; -1 if there is none."""
        written = self._written
        total = len(self)
        if total > written and self._entry(written)[field] <= target:
            return bisect_right(range(total), target, lo=written, key=lambda index: self._entry(index)[field]) - 1
        return bisect_right(range(written), target, key=lambda index: self._entry(index)[field]) - 1

    def _cut(self, count: int) -> None:
        """Keep the first `count` entries, in memory and in the file."""
        self._last = None
        if count >= self._written:
            del self._tail[(count - self._written) * self.entry_format.size :]
            return
        self._tail.clear()
        self._written = count
        os.ftruncate(self.file.descriptor(), count * self.entry_format.size)

    def _is_zero(self, index: int) -> bool:
        return not any(self._entry(index))
