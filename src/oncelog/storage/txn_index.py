"""The `.txnindex` file: the aborted transactions whose marker lies in one segment. Big-endian, no header.

    offset  size  field
    0       2     version = 0
    2       8     producerId
    10      8     firstOffset: first data offset of the transaction on the partition, maybe in an earlier segment
    18      8     lastOffset: offset of the ABORT marker
    26      8     lastStableOffset right after the abort: first offset of the oldest other open transaction,
                  else lastOffset + 1

Entries are appended in marker order, so lastOffset ascends strictly and lastStableOffset never falls: both can be
searched by halving. The file is created with its first entry; most segments never have one. Everything read comes
straight from the file, so an index of any length costs no memory.
"""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_left
from collections.abc import Container, Generator, Iterator
from typing import Final

import google_crc32c

from oncelog.core.failpoints import hit
from oncelog.core.invariant import invariant
from oncelog.core.named_tuple import NamedTuple
from oncelog.storage.file_cache import FileHandle

ENTRY_SIZE_BYTES: Final = 34
ENTRY_VERSION: Final = 0

_ENTRY: Final = struct.Struct(">hqqqq")
_OFFSET: Final = struct.Struct(">q")
_LAST_OFFSET_POSITION: Final = 18
_READ_CHUNK_ENTRIES: Final = 128
_CRC_CHUNK_ENTRIES: Final = 8192


class CorruptTxnIndexError(Exception):
    """The file cannot be trusted: rebuild it from the segments."""


class AbortedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        return _ENTRY.pack(ENTRY_VERSION, *self)


def decode_entries(data: bytes) -> Iterator[tuple[int, AbortedTxn]]:
    """Whole entries. Each begins with its version."""
    return ((version, AbortedTxn(*fields)) for version, *fields in _ENTRY.iter_unpack(data))


class TxnIndex:
    """The transaction index of the segment that starts at `base_offset`."""

    def __init__(self, file: FileHandle, base_offset: int, *, is_missing: bool = False) -> None:
        """`is_missing` spares a look at the folder, for those who have listed it."""
        self._file = file
        self.path = path = file.path
        self.base_offset = base_offset
        size = path.stat().st_size if not is_missing and path.exists() else None
        self._may_exist = size is not None
        self._count, rest = divmod(size or 0, ENTRY_SIZE_BYTES)
        self.is_torn = rest != 0 or size == 0
        """Whether the file is empty, which a new one never is, or ends within an entry. It must be rebuilt then."""
        self._crc: int | None = None if size else 0

    def __len__(self) -> int:
        return self._count

    def append(self, txn: AbortedTxn) -> None:
        """Add an entry. Its marker lies behind that of every entry before. On an error the entry is not in the index.

        The entry before is read from the file: CorruptTxnIndexError when it cannot be right.
        """
        invariant(txn.last_offset >= self.base_offset, "%s: marker offset %s is too low", self.path, txn.last_offset)
        if self._count and txn.last_offset <= (last_offset := self._last_offset_at(self._count - 1)):
            raise CorruptTxnIndexError(f"{self.path} ends with a marker at {last_offset}, above {txn.last_offset}")
        hit("txn_index.append.before_write")
        entry = txn.encode()
        self._may_exist = True
        written = os.pwrite(self._file.descriptor(creates=True), entry, self._count * ENTRY_SIZE_BYTES)
        if written != ENTRY_SIZE_BYTES:
            raise OSError(errno.ENOSPC, f"wrote {written} of {ENTRY_SIZE_BYTES} bytes", str(self.path))
        self._count += 1
        if self._crc is not None:
            self._crc = google_crc32c.extend(self._crc, entry)

    def read(self) -> bytes:
        """All whole entries as they are in the file."""
        return os.pread(self._file.descriptor(), self._count * ENTRY_SIZE_BYTES, 0) if self._count else b""

    def fill(self, entries: bytes) -> None:
        """Put whole entries into an index that has none. After an error it must be reset."""
        invariant(not self._count, "%s has %s entries already", self.path, self._count)
        if not entries:
            return
        self._may_exist = True
        written = os.pwrite(self._file.descriptor(creates=True), entries, 0)
        if written != len(entries):
            raise OSError(errno.ENOSPC, f"wrote {written} of {len(entries)} bytes", str(self.path))
        self._count = len(entries) // ENTRY_SIZE_BYTES
        self._crc = google_crc32c.value(entries)

    @property
    def crc(self) -> int:
        """CRC-32C over all whole entries."""
        if self._crc is None:
            self._crc = self._read_crc(self._count)
        return self._crc

    def starts_with(self, count: int, crc: int) -> bool:
        """Whether there are `count` entries, and maybe others behind them, with this CRC-32C."""
        return count <= self._count and self._read_crc(count) == crc

    def _read_crc(self, count: int) -> int:
        crc = 0
        for index in range(0, count, _CRC_CHUNK_ENTRIES):
            size = min(_CRC_CHUNK_ENTRIES, count - index) * ENTRY_SIZE_BYTES
            crc = google_crc32c.extend(crc, os.pread(self._file.descriptor(), size, index * ENTRY_SIZE_BYTES))
        return crc

    def collect(
        self,
        fetch_offset: int,
        upper_bound: int,
        found: list[AbortedTxn],
        producers: Container[int] | None = None,
    ) -> Generator[None, None, bool]:
        """Adds the aborted transactions that overlap [fetch_offset, upper_bound) to `found`, in marker order; only
        those of `producers`, if they are given. Other work may be done at a yield, of which a short search has none.

        Starts at the first marker at or above `fetch_offset` and stops at the first entry whose last stable offset has
        reached `upper_bound`: all that were open below it are decided by then. Entries before the start cannot be that
        stopping entry, since their last stable offset is at most `fetch_offset`. Returns whether there was one: then no
        later segment can hold another aborted transaction of the range.
        """
        if self.is_torn:
            raise CorruptTxnIndexError(f"{self.path} ends within an entry")
        if not self._count:
            return False
        start = index = bisect_left(range(self._count), fetch_offset, key=self._last_offset_at)
        while index < self._count:
            if index > start:
                yield
            # The same as `entries`, which would take five times as long: there may be millions.
            for version, producer_id, first_offset, last_offset, stable_offset in self._read(index):
                if version != ENTRY_VERSION:
                    raise self._unknown_version(version)
                if first_offset < upper_bound and (producers is None or producer_id in producers):
                    found.append(AbortedTxn(producer_id, first_offset, last_offset, stable_offset))
                if stable_offset >= upper_bound:
                    return True
            index += _READ_CHUNK_ENTRIES
        return False

    def entries(self) -> Iterator[AbortedTxn]:
        for index in range(0, self._count, _READ_CHUNK_ENTRIES):
            for version, *fields in self._read(index):
                if version != ENTRY_VERSION:
                    raise self._unknown_version(version)
                yield AbortedTxn(*fields)

    def truncate_to(self, offset: int) -> None:
        """Remove every entry whose marker is at or above `offset`."""
        keep = bisect_left(range(self._count), offset, key=self._last_offset_at)
        if keep < self._count:
            self._truncate(keep)

    def sanity_check(self) -> None:
        """Read everything; CorruptTxnIndexError for a torn entry, an unknown version or offsets out of order."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size != self._count * ENTRY_SIZE_BYTES:
            raise CorruptTxnIndexError(f"{self.path}: {size} bytes are no multiple of {ENTRY_SIZE_BYTES}")
        floor = self.base_offset - 1
        for position, txn in enumerate(self.entries()):
            if not floor < txn.last_offset or not txn.first_offset <= txn.last_offset:
                raise CorruptTxnIndexError(f"{self.path}: entry {position} is out of order: {txn}")
            floor = txn.last_offset

    def close(self) -> None:
        """Give the descriptor back. It is opened again when it is needed."""
        self._file.close()

    def reset(self) -> None:
        """Remove all entries, whole or torn, and the file with them, which need not exist."""
        self.close()
        if self._may_exist:
            self.path.unlink(missing_ok=True)
        self._count = 0
        self._crc = 0
        self.is_torn = False

    def _truncate(self, count: int) -> None:
        os.ftruncate(self._file.descriptor(), count * ENTRY_SIZE_BYTES)
        self._count = count
        self._crc = None
        self.is_torn = False

    def _last_offset_at(self, index: int) -> int:
        raw = os.pread(self._file.descriptor(), _OFFSET.size, index * ENTRY_SIZE_BYTES + _LAST_OFFSET_POSITION)
        if len(raw) != _OFFSET.size:
            raise CorruptTxnIndexError(f"{self.path}: entry {index} of {self._count} is missing")
        offset: int = _OFFSET.unpack(raw)[0]
        return offset

    def _read(self, index: int) -> Iterator[tuple[int, int, int, int, int]]:
        """The entries of a chunk, with their versions."""
        wanted = min(_READ_CHUNK_ENTRIES, self._count - index) * ENTRY_SIZE_BYTES
        raw = os.pread(self._file.descriptor(), wanted, index * ENTRY_SIZE_BYTES)
        if len(raw) != wanted:
            raise CorruptTxnIndexError(f"{self.path}: entry {index + len(raw) // ENTRY_SIZE_BYTES} is missing")
        return _ENTRY.iter_unpack(raw)

    def _unknown_version(self, version: int) -> CorruptTxnIndexError:
        return CorruptTxnIndexError(f"{self.path}: version {version} is unknown, expected {ENTRY_VERSION}")
