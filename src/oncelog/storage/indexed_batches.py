"""The batches of a segment, found by offset or timestamp through the `.index` and `.timeindex` beside its `.log`.

The formats of the indexes stand in their modules. Indexes are opened when something is looked up. One that is missing
or does not fit its log is rebuilt from the batch headers, whenever that is noticed: entries are compared with the batch
that they point at before they are used.
"""

from __future__ import annotations

import logging
from pathlib import Path

from oncelog.core.ids import NO_OFFSET, NO_TIMESTAMP
from oncelog.protocol.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    CorruptBatchError,
    read_header,
)
from oncelog.storage.batch_times import FoundTimestamp, TimesReader
from oncelog.storage.index_file import CorruptIndexError
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_place import LogPlace
from oncelog.storage.offset_index import OffsetIndex, OffsetPosition
from oncelog.storage.segment_batches import FileBatch, SegmentBatches
from oncelog.storage.segment_names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, file_name
from oncelog.storage.segment_notes import SegmentNote
from oncelog.storage.time_index import TimeIndex, TimestampEntry

logger = logging.getLogger("oncelog.storage")


class IndexedBatches(SegmentBatches):
    __slots__ = (
        "_config",
        "_largest",
        "_offset_index",
        "_place",
        "_suffix",
        "_time_index",
        "_unindexed_bytes",
        "base_offset",
        "note",
    )

    def __init__(
        self,
        place: LogPlace,
        base_offset: int,
        config: LogConfig,
        *,
        size_bytes: int = 0,
        suffix: str = "",
        note: SegmentNote | None = None,
    ) -> None:
        """`suffix` is put behind the names of all files: of a segment that is not part of the log yet."""
        self._place = place
        self._suffix = suffix
        self.base_offset = base_offset
        super().__init__(place.files.handle(self._path(LOG_SUFFIX)), size_bytes)
        self._config = config
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._largest: TimestampEntry | None = None
        self._unindexed_bytes: int | None = None
        """Of batches from the last one in the offset index on; None until the next append needs to know."""
        self.note = note
        """What the files of the indexes must contain, if that is known."""

    def _path(self, suffix: str) -> Path:
        return self._place.folder / (file_name(self.base_offset, suffix) + self._suffix)

    # Indexes

    @property
    def offset_index(self) -> OffsetIndex:
        index = self._offset_index
        return index if index is not None else self._load_indexes()[0]

    @property
    def time_index(self) -> TimeIndex:
        index = self._time_index
        return index if index is not None else self._load_indexes()[1]

    def _load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        try:
            self.open_indexes()
            self.check_time_index()
        except (FileNotFoundError, CorruptIndexError) as error:
            logger.warning("rebuilding the indexes of %s: %s", self.log_file.path, error)
            return self.rebuild_indexes()
        # Not those that were opened: the check uses them, and may have found that they had to be rebuilt.
        return self.offset_index, self.time_index

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

    def _check_ends(self, offset_index: OffsetIndex, time_index: TimeIndex) -> None:
        offset_index.check_against(self.size_bytes)
        time_index.check_ends()
        interval = self._config.index_interval_bytes
        if not len(offset_index) and any(batch.position > interval for batch in self.batches()):
            raise CorruptIndexError(f"{offset_index.file.path} is empty, but there are batches to be indexed")
        if self.size_bytes and not len(time_index) and next(self.batches()).header.max_timestamp >= 0:
            raise CorruptIndexError(f"{time_index.file.path} is empty, but there are timestamps")

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
            # Damaged batches cannot be compared. Readers of these batches will notice the damage.
            logger.debug("%s is not compared with its batch: %s", entry, error)
            return True

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

    def add_to_indexes(self, header: BatchHeader, position: int) -> None:
        """Count a batch that lies at `position`, and index it when its turn has come."""
        last_offset = header.base_offset + header.last_offset_delta
        largest = self._largest or self.largest
        if header.max_timestamp > largest.timestamp:
            self._largest = largest = TimestampEntry(header.max_timestamp, last_offset)
        if self._unindexed_bytes is None:
            self._unindexed_bytes = position - self.offset_index.last.position
        if self._unindexed_bytes > self._config.index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append_if_greater(*largest)
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.batch_length + LENGTH_OVERHEAD_BYTES

    @property
    def is_largest_known(self) -> bool:
        """Whether `largest` is at hand, without a look at the time index."""
        return self._largest is not None

    @property
    def largest(self) -> TimestampEntry:
        """The largest timestamp and the last offset of the batch that has it."""
        if self._largest is None:
            self._largest = self.time_index.last
        return self._largest

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
        """Where a scan for `offset` may start, by the index. An entry counts only if there is a batch for it."""
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

    def find_timestamp(self, timestamp: int, start_offset: int, reader: TimesReader) -> FoundTimestamp | None:
        """The first record from `start_offset` on whose timestamp is not below `timestamp`. Raises LongLookup."""
        entry = self._time_entry(timestamp)
        for batch in self.batches(self._scan_start(max(entry.offset, start_offset))):
            if batch.header.last_offset < start_offset:
                continue
            reader.pass_header(batch.header)
            if batch.header.max_timestamp >= timestamp:
                found = reader.read(self._bytes_of(batch), start_offset).first_from(timestamp)
                if found is not None:
                    return found
        return None

    def _time_entry(self, timestamp: int) -> TimestampEntry:
        """The last entry at or below `timestamp`. It counts only if its batch has that timestamp."""
        entry = self.time_index.lookup(timestamp)
        if entry.timestamp >= 0 and not self._fits_its_batch(entry):
            logger.warning("rebuilding the indexes of %s: %s is not what its batch has", self.log_file.path, entry)
            return self.rebuild_indexes()[1].lookup(timestamp)
        return entry

    def find_largest_timestamp(self, reader: TimesReader) -> FoundTimestamp | None:
        """The first record that has the segment's largest timestamp. Raises LongLookup."""
        timestamp, offset = self.largest
        batch = self.find(offset) if timestamp >= 0 else None
        return reader.read(self._bytes_of(batch), NO_OFFSET).first_from(timestamp) if batch is not None else None

    def _bytes_of(self, batch: FileBatch) -> bytes:
        whole = self.read_whole(batch)
        return whole.data[whole.start : whole.start + batch.header.size_bytes]

    def read_next_offset(self) -> int:
        """The offset after the last batch. CorruptBatchError if the file does not end with a whole batch."""
        next_offset = self.base_offset
        for batch in self.batches(self._scan_start(self.offset_index.last.offset)):
            next_offset = batch.header.next_offset
        return next_offset
