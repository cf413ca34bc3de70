"""One segment of a log: `<base offset>.log`, the batches, and its `.index`, `.timeindex` and `.txnindex`.

The number in the name is the base offset in 20 digits. A `.log` file is a plain concatenation of record batches
(see `protocol.batch`); the formats of the indexes stand in their modules. Opening a segment touches no file: sizes come
from the folder's listing, indexes are opened when something is looked up, and descriptors are the file cache's.

An index that is missing or does not fit its log is rebuilt from the batch headers, whenever that is noticed: entries
of the offset index and the time index are compared with the batch that they point at before they are used. Who uses the
transaction index has it checked by the log's `TxnIndexKeeper` first.
"""

from __future__ import annotations

import errno
import logging
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from oncelog.core import failpoints
from oncelog.core.ids import NO_TIMESTAMP
from oncelog.protocol.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    CorruptBatchError,
    decode_records,
    read_header,
)
from oncelog.protocol.primitives import Readable
from oncelog.storage.index_file import CorruptIndexError
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_place import LogPlace
from oncelog.storage.offset_index import RELATIVE_OFFSET_MAX, OffsetIndex, OffsetPosition
from oncelog.storage.segment_batches import FileBatch, SegmentBatches
from oncelog.storage.segment_notes import SegmentNote
from oncelog.storage.time_index import TimeIndex, TimestampEntry
from oncelog.storage.txn_index import TxnIndex

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
DELETED_SUFFIX: Final = ".deleted"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

BUFFERS_PER_WRITE_MAX: Final = 1024
"""The least IOV_MAX of the systems this runs on."""

logger = logging.getLogger("oncelog.storage")


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """The offset a file is named after, or None."""
    digits = name.partition(".")[0]
    return int(digits) if len(digits) == 20 and digits.isdigit() else None


class FoundTimestamp(NamedTuple):
    """A record found by its timestamp. `leader_epoch` is -1 if unknown."""

    timestamp: int
    offset: int
    leader_epoch: int


class Segment(SegmentBatches):
    __slots__ = (
        "_config",
        "_first_timestamp",
        "_largest",
        "_offset_index",
        "_place",
        "_suffix",
        "_time_index",
        "_txn_index",
        "_unindexed_bytes",
        "base_offset",
        "created_ms",
        "is_txn_index_checked",
        "note",
    )

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
    ) -> None:
        """`suffix` is put behind the names of all files: of a segment that is not part of the log yet."""
        self._place = place
        self._suffix = suffix
        self.base_offset = base_offset
        super().__init__(place.files.handle(self._path(LOG_SUFFIX)), size_bytes)
        self.created_ms = place.now_ms if now_ms is None else now_ms
        self._config = config
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TxnIndex | None = None
        self._largest: TimestampEntry | None = None
        self._first_timestamp: int | None = None
        self._unindexed_bytes = 0
        self.note = note
        """What its files must hold, as far as that is known."""
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
    def offset_index(self) -> OffsetIndex:
        index = self._offset_index
        return index if index is not None else self._load_indexes()[0]

    @property
    def time_index(self) -> TimeIndex:
        index = self._time_index
        return index if index is not None else self._load_indexes()[1]

    @property
    def txn_index(self) -> TxnIndex:
        if self._txn_index is None:
            self._txn_index = TxnIndex(self._place.files.handle(self._path(TXN_INDEX_SUFFIX)), self.base_offset)
        return self._txn_index

    def reset_txn_index(self) -> None:
        """No entries, and none to be missed."""
        self.txn_index.reset()
        self.is_txn_index_checked = True

    def close_txn_index(self) -> None:
        """The file is looked at anew when it is needed again."""
        if self._txn_index is not None:
            self._txn_index.close()
            self._txn_index = None

    def take_note(self, *, is_growing: bool) -> SegmentNote | None:
        """What the files hold, once index tails are written; as noted before where they were not looked at since."""
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

    def _new_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        self._close_indexes()
        size_bytes_max = self._config.segment_index_bytes
        return (
            OffsetIndex(self._place.files.handle(self._path(INDEX_SUFFIX)), self.base_offset, size_bytes_max),
            TimeIndex(self._place.files.handle(self._path(TIME_INDEX_SUFFIX)), self.base_offset, size_bytes_max),
        )

    def _close_indexes(self) -> None:
        if self._offset_index is not None:
            self._offset_index.close()
        if self._time_index is not None:
            self._time_index.close()

    def _load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        try:
            self.open_indexes()
            self.check_time_index()
        except (FileNotFoundError, CorruptIndexError) as error:
            logger.warning("rebuilding the indexes of %s: %s", self.log_file.path, error)
            return self.rebuild_indexes()
        # Not those that were opened: the check uses them, and may have found that they had to be rebuilt.
        return self.offset_index, self.time_index

    def check_time_index(self) -> None:
        """CorruptIndexError if entries are missing at its end, or if the last one is not what its batch has."""
        index = self.time_index
        if self.note is not None and len(index) < self.note.time_entries:
            raise CorruptIndexError(
                f"{index.file.path} has {len(index)} of {self.note.time_entries} entries, or others than it had"
            )
        self.check_last_timestamp()

    def check_last_timestamp(self) -> None:
        index = self.time_index
        if len(index) and not self._fits_its_batch(index.last):
            raise CorruptIndexError(f"{index.file.path}: {index.last} is not what the batch at its offset has")

    def _fits_its_batch(self, entry: TimestampEntry) -> bool:
        try:
            batch = self.find(entry.offset)
            return batch is not None and batch.header.max_timestamp == entry.timestamp
        except CorruptBatchError as error:
            # That cannot be found out from damaged batches. Whoever reads them will notice.
            logger.debug("%s is not compared with its batch: %s", entry, error)
            return True

    def open_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """The indexes as they are on disk. FileNotFoundError or CorruptIndexError if they cannot be used."""
        offset_index, time_index = self._new_indexes()
        try:
            offset_index.load()
            time_index.load()
            self._check_ends(offset_index, time_index)
        except Exception:
            offset_index.close()
            time_index.close()
            raise
        self._offset_index, self._time_index = offset_index, time_index
        return offset_index, time_index

    def _check_ends(self, offset_index: OffsetIndex, time_index: TimeIndex) -> None:
        offset_index.check_against(self.size_bytes)
        time_index.check_ends()
        interval = self._config.index_interval_bytes
        if not len(offset_index) and any(batch.position > interval for batch in self.batches()):
            raise CorruptIndexError(f"{offset_index.file.path} is empty, but there are batches to be indexed")
        if self.size_bytes and not len(time_index) and next(self.batches()).header.max_timestamp >= 0:
            raise CorruptIndexError(f"{time_index.file.path} is empty, but there are timestamps")

    def rebuild_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes, from the headers of all batches. CorruptBatchError, and nothing changed, if one is damaged."""
        next_offset = self.base_offset
        for batch in self.batches():
            if batch.header.base_offset < next_offset:
                where = f"{self.log_file.path}, byte {batch.position}"
                raise CorruptBatchError(f"{where}: offset {batch.header.base_offset} is below {next_offset}")
            next_offset = batch.header.next_offset
        offset_index, time_index = self.reset_indexes()
        for batch in self.batches():
            self.add_to_indexes(batch.header, batch.position)
        time_index.append_if_greater(*self.largest)
        self.write_index_tails()
        return offset_index, time_index

    def reset_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes empty, as at the start of a scan."""
        offset_index, time_index = self._new_indexes()
        offset_index.create()
        time_index.create()
        self._offset_index, self._time_index = offset_index, time_index
        self._largest = TimestampEntry(NO_TIMESTAMP, self.base_offset)
        self._unindexed_bytes = 0
        return offset_index, time_index

    def truncate_indexes(self, offset: int) -> None:
        """Forget what the indexes, the transaction index too, say of batches that end at or above `offset`."""
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self._largest = self.time_index.last
        self._unindexed_bytes = 0

    def add_to_indexes(self, header: BatchHeader, position: int) -> None:
        """Count a batch that lies at `position`, and index it when its turn has come."""
        last_offset = header.base_offset + header.last_offset_delta
        largest = self._largest or self.largest
        if header.max_timestamp > largest.timestamp:
            self._largest = largest = TimestampEntry(header.max_timestamp, last_offset)
        if self._unindexed_bytes > self._config.index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append_if_greater(*largest)
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.batch_length + LENGTH_OVERHEAD_BYTES

    @property
    def largest(self) -> TimestampEntry:
        """The largest timestamp and the last offset of the batch that has it."""
        if self._largest is None:
            self._largest = self.time_index.last
        return self._largest

    @property
    def largest_timestamp_ms(self) -> int:
        """For retention: without any timestamp, the time of the last write counts."""
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
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
            or self.offset_index.is_full
            or self.time_index.is_full
            or (size > 0 and self._waited_ms(max_timestamp, now_ms) > config.roll_after_ms(name, self.base_offset))
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

    def write_index_tails(self) -> None:
        if self._offset_index is not None:
            self._offset_index.write_tail()
        if self._time_index is not None:
            self._time_index.write_tail()

    # Reading

    def find(self, offset: int) -> FileBatch | None:
        """The first batch that ends at or above `offset`."""
        for batch in self.batches(self._scan_start(offset)):
            if batch.header.last_offset >= offset:
                return batch
        return None

    def _scan_start(self, offset: int) -> int:
        """Where a scan for `offset` may start, by the index. An entry is believed only if its batch is there."""
        entry = self.offset_index.lookup(offset)
        if entry.position and not self._is_batch_at(entry):
            logger.warning("rebuilding the indexes of %s: there is no batch for %s", self.log_file.path, entry)
            self.rebuild_indexes()
            entry = self.offset_index.lookup(offset)
        return entry.position

    def _is_batch_at(self, entry: OffsetPosition) -> bool:
        if not 0 <= entry.position <= self.size_bytes - HEADER_BYTES:
            return False
        header = read_header(self.read_bytes(entry.position, HEADER_BYTES))
        return header.magic == MAGIC and header.last_offset == entry.offset

    def find_timestamp(self, timestamp: int, start_offset: int) -> FoundTimestamp | None:
        """The first record from `start_offset` on whose timestamp is not below `timestamp`."""
        entry = self._time_entry(timestamp)
        for batch in self.batches(self._scan_start(max(entry.offset, start_offset))):
            if batch.header.max_timestamp >= timestamp and batch.header.last_offset >= start_offset:
                for found in self._timestamps(batch):
                    if found.timestamp >= timestamp and found.offset >= start_offset:
                        return found
        return None

    def _time_entry(self, timestamp: int) -> TimestampEntry:
        """The last entry at or below `timestamp`, believed only if its batch has that timestamp."""
        entry = self.time_index.lookup(timestamp)
        if entry.timestamp >= 0 and not self._fits_its_batch(entry):
            logger.warning("rebuilding the indexes of %s: %s is not what its batch has", self.log_file.path, entry)
            return self.rebuild_indexes()[1].lookup(timestamp)
        return entry

    def find_largest_timestamp(self) -> FoundTimestamp | None:
        """The first record that has the segment's largest timestamp."""
        timestamp, offset = self.largest
        batch = self.find(offset) if timestamp >= 0 else None
        if batch is None:
            return None
        return next((found for found in self._timestamps(batch) if found.timestamp == timestamp), None)

    def _timestamps(self, batch: FileBatch) -> Iterator[FoundTimestamp]:
        header = batch.header
        whole = self.read_whole(batch)
        for record in decode_records(whole.data, whole.start):
            timestamp = (
                header.max_timestamp if header.timestamp_type_append else header.base_timestamp + record.timestamp_delta
            )
            yield FoundTimestamp(timestamp, header.base_offset + record.offset_delta, header.leader_epoch)

    def read_next_offset(self) -> int:
        """The offset after the last batch. CorruptBatchError if the file does not end with a whole batch."""
        next_offset = self.base_offset
        for batch in self.batches(self._scan_start(self.offset_index.last.offset)):
            next_offset = batch.header.next_offset
        return next_offset

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
        return [path for path in map(self._path, SEGMENT_SUFFIXES) if path.exists()]

    def close(self) -> None:
        """Give descriptors back. What is not written yet is not written."""
        self.log_file.close()
        self._close_indexes()
        if self._txn_index is not None:
            self._txn_index.close()

    def _path(self, suffix: str) -> Path:
        return self._place.folder / (file_name(self.base_offset, suffix) + self._suffix)


def segment_number(segments: Sequence[Segment], offset: int) -> int:
    """Which of the segments holds `offset`: the last that does not start above it, or the first."""
    if offset >= segments[-1].base_offset:
        return len(segments) - 1
    return max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1)
