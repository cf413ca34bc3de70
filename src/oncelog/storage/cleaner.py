"""Compaction of one log: of all records with the same key, the newest stays.

Theory of operation
-------------------
A cleaning is prepared by the owner of the broker's state, runs on a worker thread, and is brought to an end by the
owner again. In between it touches nothing but files that do not change any more, through descriptors of its own, and
new files with the suffix `.cleaned`.

1. `prepare`, by the owner, in steps: takes down the segments below the bound, the last records of active producers,
   and the aborted transactions whose markers lie beyond the bound.
2. `build_map`, on a worker: reads the dirty segments and puts the newest offset of each key into the offset map. If
   that gets full, the pass ends there and the rest is left to the next one.
3. `clean`, on a worker, for each group of neighbouring segments: copies what `batch_filter` leaves of them, from the
   start of the log on, into one new segment, and fsyncs it.
4. `Log.replace_segments`, by the owner, after each group: the swap. It is refused if the log was cut meanwhile.
5. When all groups are done, `end_offset` is the first dirty offset of the log.

A pass that stops half way leaves a correct log: what was removed is superseded by records that are still there.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from oncelog.core import failpoints
from oncelog.core.dataclass import dataclass
from oncelog.protocol.batch import BatchHeader
from oncelog.storage.append_checks import read_control
from oncelog.storage.atomic_file import sync_path
from oncelog.storage.batch_filter import BatchFilter, KeptBatch
from oncelog.storage.cleaned_transactions import CleanedTransactions
from oncelog.storage.cleaner_pace import Pace
from oncelog.storage.cleaner_plan import Cleanable, SourceSegment, group_segments
from oncelog.storage.file_cache import FileCache
from oncelog.storage.interrupted_files import CLEANED_SUFFIX
from oncelog.storage.log_place import LogPlace
from oncelog.storage.offset_map import OffsetMap
from oncelog.storage.producer_entry import LastRecord
from oncelog.storage.record_slices import records_section, slice_records, sole_key
from oncelog.storage.segment import Segment
from oncelog.storage.segment_batches import FileBatch
from oncelog.storage.segment_names import LOG_SUFFIX, file_name
from oncelog.storage.segment_swap import CleanedSegment
from oncelog.storage.txn_index import AbortedTxn, CorruptTxnIndexError
from oncelog.storage.txn_index_keeper import SegmentGoneError

WRITE_BYTES: Final = 1024 * 1024
"""Gathered before they are written."""
_OPEN_FILES_MAX: Final = 16


class DamagedTxnIndexError(Exception):
    """The transaction index of the segment at `base_offset` must be rebuilt before the log can be cleaned."""

    def __init__(self, base_offset: int) -> None:
        super().__init__(f"the transaction index of the segment at {base_offset} is damaged")
        self.base_offset = base_offset


@dataclass(slots=True)
class CleaningStats:
    read_bytes: int = 0
    kept_bytes: int = 0
    segments_before: int = 0
    segments_after: int = 0


class CleaningPass:
    def __init__(self, cleanable: Cleanable, *, map_memory_bytes: int, now_ms: int, pace: Pace | None = None) -> None:
        log = cleanable.log
        self.cleanable = cleanable
        self.stats = CleaningStats()
        self.groups: list[list[SourceSegment]] = []
        self._folder = log.folder
        self._config = log.config
        self.generation = log.generation
        self._now_ms = now_ms
        self.pace = pace or Pace()
        self._place = LogPlace(log.folder, log.topic_partition, now_ms, FileCache(_OPEN_FILES_MAX))
        self._sources: list[SourceSegment] = []
        self._txn_indexes: dict[int, tuple[int, int]] = {}
        """Their entries and their CRC. A file that was damaged or lost since its check is not believed."""
        self._aborted_beyond: list[AbortedTxn] = []
        self._last_records: dict[int, LastRecord] = {}
        self._offsets = OffsetMap(map_memory_bytes)
        self._filter: BatchFilter | None = None

    def prepare(self) -> Generator[None, None, None]:
        """SegmentGoneError if the log has changed between two steps."""
        log, upper_bound = self.cleanable.log, self.cleanable.upper_bound
        for _ in log.files.txn_indexes.check_below(upper_bound):
            yield
            if log.generation != self.generation:
                raise SegmentGoneError(f"{log.topic_partition} was cut, or opened again")
        # What begins below the bound has ended: nothing that is appended between the steps belongs here.
        yield from log.collect_aborted(upper_bound, upper_bound, self._aborted_beyond)
        self._sources = _sources(log.segments, upper_bound)
        for segment in log.segments[: len(self._sources)]:
            self._txn_indexes[segment.base_offset] = (len(segment.txn_index), segment.txn_index.crc)
        self._last_records = log.producer_state.last_records()

    @property
    def end_offset(self) -> int:
        """The first offset that is dirty when all groups are done."""
        return max(self._offsets.latest_offset + 1, self.cleanable.first_dirty_offset)

    # Both run on a worker thread.

    def build_map(self) -> None:
        """The first pass. Afterwards `groups` says what there is to clean."""
        # One that could not be removed would make a start doubt the swaps of segments behind it.
        for leftover in self._folder.glob(f"*{CLEANED_SUFFIX}"):
            leftover.unlink(missing_ok=True)
        aborted = [*self._aborted_within(), *self._aborted_beyond]
        dirty = [source for source in self._sources if source.next_base_offset > self.cleanable.first_dirty_offset]
        # One whose marker lies before the dirty segments would never end here.
        first_offset = dirty[0].base_offset if dirty else self.cleanable.upper_bound
        transactions = CleanedTransactions(txn for txn in aborted if txn.last_offset >= first_offset)
        for source in dirty:
            if not self._map(source, transactions):
                break
        self._filter = BatchFilter(
            self._offsets,
            CleanedTransactions(aborted),
            upper_bound=self.cleanable.upper_bound,
            now_ms=self._now_ms,
            delete_retention_ms=self._config.delete_retention_ms,
            last_records=self._last_records,
            yield_turn=self.pace.yield_turn,
        )
        cleaned = [source for source in self._sources if source.base_offset < self.end_offset]
        self.groups = group_segments(cleaned, self._folder, self._config)

    def clean(self, group: Sequence[SourceSegment]) -> CleanedSegment:
        """The second pass over one group, which must come in order. Raises OSError and leaves no files then."""
        target = Segment(self._place, group[0].base_offset, self._config, suffix=CLEANED_SUFFIX)
        try:
            target.create_files()
            self._copy(group, target)
            failpoints.hit("cleaner.before_fsync")
            files = self._complete(group, target)
        except Exception:
            target.close()
            for path in target.paths():
                path.unlink(missing_ok=True)
            raise
        self.stats.segments_before += len(group)
        self.stats.segments_after += 1
        return CleanedSegment(
            group[0].base_offset,
            target.size_bytes,
            files,
            replaces=tuple((source.base_offset, source.size_bytes) for source in group),
            generation=self.generation,
        )

    # The first pass

    def _aborted_within(self) -> Iterator[AbortedTxn]:
        for source in self._sources:
            index = Segment(self._place, source.base_offset, self._config).txn_index
            try:
                index.sanity_check()
                if index.is_torn or (len(index), index.crc) != self._txn_indexes[source.base_offset]:
                    raise DamagedTxnIndexError(source.base_offset)
                yield from index.entries()
            except CorruptTxnIndexError as error:
                raise DamagedTxnIndexError(source.base_offset) from error
            finally:
                index.close()

    def _map(self, source: SourceSegment, transactions: CleanedTransactions) -> bool:
        """Put the keys of a segment into the map. Returns whether there was room for all of them."""
        first_dirty_offset = self.cleanable.first_dirty_offset
        for batch in self._batches(source):
            header = batch.header
            if header.is_control:
                transactions.on_control(header, read_control(header, batch.data, batch.start))
            elif (
                not transactions.on_data(header)
                and header.last_offset >= first_dirty_offset
                and not self._map_batch(batch)
            ):
                return False
            if header.last_offset >= first_dirty_offset:
                self._offsets.latest_offset = header.last_offset
        self._offsets.latest_offset = source.next_base_offset - 1
        return True

    def _map_batch(self, batch: FileBatch) -> bool:
        header, data, start = batch.header, batch.data, batch.start
        key = sole_key(header, data, start)
        if key is not None:
            return self._offsets.put(key, header.base_offset)
        records = slice_records(records_section(header, data, start), header, self.pace.yield_turn)
        return self._offsets.add(header.base_offset, records, self.cleanable.first_dirty_offset)

    def _batches(self, source: SourceSegment) -> Iterator[FileBatch]:
        segment = Segment(self._place, source.base_offset, self._config, size_bytes=source.size_bytes)
        try:
            # Checked, because a batch that is written anew gets a new checksum, which would hide damage for ever.
            for batch in segment.batches(checked=True):
                self.pace.yield_turn()
                yield batch
        finally:
            segment.close()

    # The second pass

    def _copy(self, group: Sequence[SourceSegment], target: Segment) -> None:
        batch_filter = self._filter
        if batch_filter is None:
            raise RuntimeError("the offset map must be built before segments are cleaned")
        writer = _Writer(target)
        for source in group:
            self.stats.read_bytes += source.size_bytes
            for batch in self._batches(source):
                kept = batch_filter.filter(batch.header, batch.data, batch.start)
                if kept is not None:
                    writer.add(kept)
        writer.write()
        self.stats.kept_bytes += target.size_bytes

    def _complete(self, group: Sequence[SourceSegment], target: Segment) -> tuple[Path, ...]:
        """All of its files on disk, and with the age of the newest segment that it replaces."""
        target.become_inactive()
        target.close()
        newest = (self._folder / file_name(group[-1].base_offset, LOG_SUFFIX)).stat()
        files = tuple(target.paths())
        for path in files:
            sync_path(path)
        os.utime(target.log_file.path, ns=(newest.st_atime_ns, newest.st_mtime_ns))
        return files


class _Writer:
    def __init__(self, target: Segment) -> None:
        self._target = target
        self._buffers: list[bytes] = []
        self._headers: list[BatchHeader] = []
        self._size_bytes = 0

    def add(self, kept: KeptBatch) -> None:
        if kept.aborted is not None:
            self._target.txn_index.append(kept.aborted)
        self._buffers.append(kept.data)
        self._headers.append(kept.header)
        self._size_bytes += len(kept.data)
        if self._size_bytes >= WRITE_BYTES:
            self.write()

    def write(self) -> None:
        if self._buffers:
            self._target.write(self._buffers, self._size_bytes)
            self._target.commit_write(self._headers)
        self._buffers, self._headers, self._size_bytes = [], [], 0


def _sources(segments: Sequence[Segment], upper_bound: int) -> list[SourceSegment]:
    return [
        SourceSegment(segment.base_offset, segment.size_bytes, following.base_offset)
        for segment, following in pairwise(segments)
        if segment.base_offset < upper_bound
    ]
