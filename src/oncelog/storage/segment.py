"""One segment of a log: `<base offset>.log`, the batches, and its `.index`, `.timeindex` and `.txnindex`.

The number in the name is the base offset in 20 digits. A `.log` file is a plain concatenation of record batches
(see `protocol.batch`). Opening a segment touches no file: sizes come from the folder's listing, and descriptors are the
file cache's. `indexed_batches` reads a segment; here are its files as a whole, appending and cutting. Who uses the
transaction index has it checked by the log's `TxnIndexKeeper` first.
"""

from __future__ import annotations

import errno
import logging
import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from oncelog.core import failpoints
from oncelog.core.ids import NO_TIMESTAMP
from oncelog.protocol.batch import LENGTH_OVERHEAD_BYTES, BatchHeader
from oncelog.protocol.primitives import Readable
from oncelog.storage.indexed_batches import IndexedBatches
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_place import LogPlace
from oncelog.storage.offset_index import RELATIVE_OFFSET_MAX
from oncelog.storage.segment_names import DELETED_SUFFIX, SEGMENT_SUFFIXES, TXN_INDEX_SUFFIX
from oncelog.storage.segment_notes import SegmentNote
from oncelog.storage.time_index import TimestampEntry
from oncelog.storage.txn_index import TxnIndex

BUFFERS_PER_WRITE_MAX: Final = 1024
"""The least IOV_MAX of the systems this runs on."""

logger = logging.getLogger("oncelog.storage")


class Segment(IndexedBatches):
    __slots__ = ("_first_timestamp", "_lacks_txn_index", "_txn_index", "created_ms", "is_txn_index_checked")

    def __init__(
        self,
        place: LogPlace,
        base_offset: int,
        config: LogConfig,
        *,
        size_bytes: int = 0,
        now_ms: int | None = None,
        suffix: str = "",
        note: SegmentNote | None = None,
        lacks_txn_index: bool = False,
    ) -> None:
        """`lacks_txn_index`: it is known that there is no file of that."""
        super().__init__(place, base_offset, config, size_bytes=size_bytes, suffix=suffix, note=note)
        self.created_ms = place.now_ms if now_ms is None else now_ms
        self._txn_index: TxnIndex | None = None
        self._lacks_txn_index = lacks_txn_index
        self._first_timestamp: int | None = None
        self.is_txn_index_checked = False

    @classmethod
    def create(cls, place: LogPlace, base_offset: int, config: LogConfig, *, now_ms: int) -> Segment:
        """Make the files of an empty segment. What is left of an older one of that offset is overwritten."""
        segment = cls(place, base_offset, config, now_ms=now_ms)
        segment.create_files()
        return segment

    def create_files(self) -> None:
        """On OSError some of them may be there."""
        self.log_file.create()
        failpoints.hit("segment.create.after_log_file")
        self.reset_indexes()
        self.reset_txn_index()

    def __repr__(self) -> str:
        return f"Segment({self.log_file.path}, {self.size_bytes} bytes)"

    # Indexes

    @property
    def txn_index(self) -> TxnIndex:
        if self._txn_index is None:
            file = self._place.files.handle(self._path(TXN_INDEX_SUFFIX))
            self._txn_index = TxnIndex(file, self.base_offset, is_missing=self._lacks_txn_index)
            self._lacks_txn_index = False
        return self._txn_index

    def reset_txn_index(self) -> None:
        """Empty the transaction index. It counts as checked."""
        self.txn_index.reset()
        self.is_txn_index_checked = True

    def close_txn_index(self) -> None:
        """The file is looked at anew when it is needed again."""
        if self._txn_index is not None:
            self._txn_index.close()
            self._txn_index = None

    def take_note(self, *, is_growing: bool) -> SegmentNote | None:
        """What the files of the segment hold, for `segment_notes`; index tails must be written by now. A file that was
        not opened since the last note holds what that says."""
        before = self.note
        if not self.is_txn_index_checked and before is None:
            return None
        txn_entries, txn_crc, time_entries = before or (0, 0, 0)
        if self.is_txn_index_checked:
            txn_entries, txn_crc = len(self.txn_index), self.txn_index.crc
        if self._time_index is not None:
            # Of the active segment it is rebuilt after a crash, and need not be noted each time.
            time_entries = 0 if is_growing else len(self._time_index)
        self.note = SegmentNote(txn_entries, txn_crc, time_entries)
        return self.note

    def truncate_indexes(self, offset: int) -> None:
        """Forget what the indexes, the transaction index too, say of batches that end at or above `offset`."""
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self._largest = self.time_index.last
        self._unindexed_bytes = None

    @property
    def largest_timestamp_ms(self) -> int:
        """The largest timestamp, for retention. Without any timestamp, the time of the last write."""
        if self.largest.timestamp >= 0:
            return self.largest.timestamp
        return int(self.log_file.path.stat().st_mtime * 1000)

    # Appending

    def should_roll(
        self, *, added_bytes: int, last_offset: int, max_timestamp: int, now_ms: int, config: LogConfig, name: str
    ) -> bool:
        size = self.size_bytes
        return (
            size > config.segment_bytes - added_bytes
            or self.must_roll(last_offset)
            or (size > 0 and self._waited_ms(max_timestamp, now_ms) > config.roll_after_ms(name, self.base_offset))
        )

    def must_roll(self, last_offset: int) -> bool:
        """Whether there is no room for a batch that ends there, whatever the settings say."""
        return (
            last_offset - self.base_offset > RELATIVE_OFFSET_MAX or self.offset_index.is_full or self.time_index.is_full
        )

    def _waited_ms(self, max_timestamp: int, now_ms: int) -> int:
        """By the clock of the records if the first batch has a timestamp, by the broker's clock otherwise."""
        first_timestamp_ms = self.first_timestamp_ms
        if first_timestamp_ms >= 0:
            return max_timestamp - first_timestamp_ms
        return now_ms - self.created_ms

    @property
    def first_timestamp_ms(self) -> int:
        """The largest timestamp of the first batch, -1 if there is none."""
        if self._first_timestamp is None:
            first = next(self.batches(), None)
            self._first_timestamp = NO_TIMESTAMP if first is None else first.header.max_timestamp
        return self._first_timestamp

    def write(self, buffers: Sequence[Readable], added_bytes: int) -> None:
        """Put bytes behind the last batch. On OSError the file is cut back, and the segment is as it was.

        `size_bytes` grows with `commit_write`. Writing at a position, not with O_APPEND, makes the next write right
        even if the cut fails.
        """
        # Outside of the try: without a descriptor there is nothing to cut back.
        descriptor = self.log_file.descriptor()
        try:
            position = self.size_bytes
            for first in range(0, len(buffers), BUFFERS_PER_WRITE_MAX):
                position += os.pwritev(descriptor, buffers[first : first + BUFFERS_PER_WRITE_MAX], position)
            if position != self.size_bytes + added_bytes:
                written = position - self.size_bytes
                raise OSError(errno.ENOSPC, f"wrote {written} of {added_bytes} bytes", str(self.log_file.path))
        except OSError:
            self._cut_back()
            raise

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self.log_file.descriptor(), self.size_bytes)
        except OSError:
            logger.exception("%s: could not cut a failed write back to %d bytes", self.log_file.path, self.size_bytes)

    def commit_write(self, headers: Sequence[BatchHeader]) -> None:
        """Take over the batches that `write` has put into the file, one by one, into size and indexes."""
        if self.size_bytes == 0:
            self._first_timestamp = max(header.max_timestamp for header in headers)
        for header in headers:
            position = self.size_bytes
            self.size_bytes = position + header.batch_length + LENGTH_OVERHEAD_BYTES
            self.add_to_indexes(header, position)

    def become_inactive(self) -> None:
        """Nothing is appended any more, at least for now: the time index gets its last entry."""
        self.time_index.append_if_greater(*self.largest)
        self.write_index_tails()

    # Cutting and removing

    def truncate_to(self, offset: int) -> int:
        """Remove batches that end at or above `offset`. Returns the first offset that is free now."""
        batch = self.find(offset)
        if batch is not None:
            self.truncate_indexes(batch.header.base_offset)
            self.truncate_log(batch.position)
            self._largest = self._largest_after_cut()
        return self.read_next_offset()

    def truncate_log(self, size_bytes: int) -> None:
        os.ftruncate(self.log_file.descriptor(), size_bytes)
        self.size_bytes = size_bytes
        if size_bytes == 0:
            self._first_timestamp = None

    def _largest_after_cut(self) -> TimestampEntry:
        largest = self.time_index.last
        for batch in self.batches(self._scan_start(largest.offset)):
            if batch.header.max_timestamp > largest.timestamp:
                largest = TimestampEntry(batch.header.max_timestamp, batch.header.last_offset)
        return largest

    def rename_deleted(self) -> list[Path]:
        """Take the files out of the way by adding `.deleted`; returns what is to be unlinked later."""
        self.close()
        renamed = []
        for path in self.paths():
            target = path.with_name(path.name + DELETED_SUFFIX)
            failpoints.hit("segment.delete.before_rename")
            path.rename(target)
            renamed.append(target)
        return renamed

    def paths(self) -> list[Path]:
        """The files that exist."""
        return [path for path in self.all_paths() if path.exists()]

    def all_paths(self) -> list[Path]:
        return list(map(self._path, SEGMENT_SUFFIXES))

    def close(self) -> None:
        """Give descriptors back. What is not written yet is not written."""
        self.log_file.close()
        self._close_indexes()
        if self._txn_index is not None:
            self._txn_index.close()


def segment_number(segments: Sequence[Segment], offset: int) -> int:
    """Which of the segments holds `offset`: the last that does not start above it, or the first."""
    if offset >= segments[-1].base_offset:
        return len(segments) - 1
    return max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1)
