"""Opening a log: what is on disk becomes segments, producer state and offsets.

Theory of operation
-------------------
After a clean stop everything was flushed in order and only the end has to be found, which takes the last index entry
and the batches behind it. If that disagrees with the recovery point, the stop was not clean after all.

After a crash nothing above the recovery point can be trusted. All that is below it was fsynced before the checkpoint
said so, indexes included. So the scan starts at the last index entry below the recovery point; if the indexes turn out
to be damaged, at the start of that segment. From there on every batch is checked, its CRC too, and counted again: into
the indexes, the transaction index, the leader epochs and the producer state. At the first batch that is not whole the
log is cut and later segments are removed.

The producer state at the start of the scan comes from the newest snapshot below it and the headers in between. A
snapshot that is damaged or missing makes that way longer, nothing else.
"""

from __future__ import annotations

import logging
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.protocol.batch import CorruptBatchError, crc_of
from oncelog.storage import leader_epochs
from oncelog.storage.append_checks import read_control
from oncelog.storage.deletions import unlink_at_once
from oncelog.storage.file_cache import FileCache
from oncelog.storage.index_file import CorruptIndexError
from oncelog.storage.interrupted_files import finish_interrupted_work
from oncelog.storage.leader_epochs import CorruptLeaderEpochsError, EpochStart, LeaderEpochs
from oncelog.storage.log_config import LogConfig
from oncelog.storage.offset_index import RELATIVE_OFFSET_MAX
from oncelog.storage.producer_state import CompletedTxn, CorruptSnapshotError, ProducerStateManager
from oncelog.storage.progress import Progress
from oncelog.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    FileBatch,
    Segment,
    offset_of,
)
from oncelog.storage.snapshot_files import SnapshotFiles, snapshot_offsets
from oncelog.storage.txn_index import AbortedTxn, CorruptTxnIndexError

REPLAY_NOW_MS = -1
"""Tells the producer state to go by the timestamps of the batches."""

logger = logging.getLogger("oncelog.storage")


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where a log is and what it needs of its surroundings."""

    folder: Path
    partition: TopicPartition
    now_ms: int
    """When the log was opened or created."""
    files: FileCache = field(default_factory=FileCache)
    delete_later: Callable[[Sequence[Path], int], None] = unlink_at_once
    """Takes files to be unlinked, and after how many milliseconds."""


@dataclass(slots=True)
class LoadedLog:
    segments: list[Segment]
    snapshots: SnapshotFiles
    leader_epochs: LeaderEpochs
    producer_state: ProducerStateManager
    log_start_offset: int
    log_end_offset: int
    recovery_point: int


def replay_batch(state: ProducerStateManager, batch: FileBatch, segment: Segment, *, index_aborted: bool) -> None:
    """Apply a batch of the log to the producer state and, if asked to, the transaction index."""
    header = batch.header
    control = None
    if header.is_control and header.records_count:
        whole = segment.read_whole(batch)
        control = read_control(header, whole.data, whole.start)
    completed = state.apply(header, control=control, now_ms=REPLAY_NOW_MS)
    if completed is not None:
        complete_txn(state, completed, segment if index_aborted else None)


def complete_txn(state: ProducerStateManager, completed: CompletedTxn, segment: Segment | None) -> None:
    """An aborted transaction enters the index of its marker's segment before it stops to hold back the LSO."""
    if completed.aborted and segment is not None:
        lso = state.lso_after(completed)
        segment.add_aborted(AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, lso))
    state.complete(completed)


def restore_producer_state(
    state: ProducerStateManager,
    place: LogPlace,
    segments: Sequence[Segment],
    snapshots: SnapshotFiles,
    end_offset: int,
) -> None:
    """Make `state` what it was at `end_offset`: from the newest usable snapshot and the batches behind it.

    A snapshot from before the first segment is of no use, because the markers in between are gone. Kafka also refuses
    one from before the log start offset; here it serves as long as the batches behind it are there, so that raising
    the log start offset does not make the log forget its producers.
    """
    first_offset = min(segments[0].base_offset, end_offset)
    state.clear(first_offset)
    while (newest := snapshots.newest_up_to(end_offset)) is not None and newest >= first_offset:
        try:
            state.load_snapshot(snapshots.read(newest), place.now_ms, end_offset=newest)
            break
        except (CorruptSnapshotError, FileNotFoundError) as error:
            logger.warning("%s: going without %s: %s", place.partition, snapshots.path(newest), error)
            snapshots.remove(newest)
    for segment, batch in _batches_between(segments, state.map_end_offset, end_offset):
        replay_batch(state, batch, segment, index_aborted=False)
    state.map_end_offset = end_offset


def _batches_between(segments: Sequence[Segment], start: int, end: int) -> Iterator[tuple[Segment, FileBatch]]:
    """Stops at the batch that reaches `end` and does not look at what follows, which may be torn."""
    first = max(0, bisect_right(segments, start, key=lambda segment: segment.base_offset) - 1)
    for segment in segments[first:]:
        if max(segment.base_offset, start) >= end:
            return
        found = segment.find(start) if start > segment.base_offset else None
        if start > segment.base_offset and found is None:
            continue
        for batch in segment.batches(found.position if found is not None else 0):
            if batch.header.base_offset >= end:
                return
            yield segment, batch
            if batch.header.next_offset >= end:
                return


def rebuild_txn_index(
    place: LogPlace, config: LogConfig, segments: Sequence[Segment], snapshots: SnapshotFiles, segment: Segment
) -> None:
    """The aborted transactions of one segment, from its markers."""
    logger.warning("%s: rebuilding the transaction index of %s", place.partition, segment)
    state = ProducerStateManager(place.partition, producer_expiration_ms=config.producer_id_expiration_ms)
    restore_producer_state(state, place, segments, snapshots, segment.base_offset)
    segment.txn_index.reset()
    for batch in segment.batches():
        replay_batch(state, batch, segment, index_aborted=True)


def load_log(
    place: LogPlace, config: LogConfig, *, clean: bool, log_start_offset: int, recovery_point: int | None
) -> LoadedLog:
    """Open a log's folder. `recovery_point` is None if no checkpoint mentions the log."""
    return _Loader(place, config, log_start_offset, recovery_point).load(clean)


class _Loader:
    def __init__(self, place: LogPlace, config: LogConfig, log_start_offset: int, recovery_point: int | None) -> None:
        self.place = place
        self.config = config
        self.log_start_offset = log_start_offset
        self.recovery_point = recovery_point
        names = finish_interrupted_work(place.folder)
        self.segments = self._open_segments(names)
        self.snapshots = SnapshotFiles(place.folder, snapshot_offsets(names))
        self.epochs, self.epochs_are_lost = self._open_epochs()
        self.state = ProducerStateManager(place.partition, producer_expiration_ms=config.producer_id_expiration_ms)
        self.progress = Progress("", 0, "")

    def load(self, clean: bool) -> LoadedLog:
        if not self.segments:
            self._start_empty(self.log_start_offset)
        end_offset = self._end_after_clean_stop() if clean else None
        if end_offset is not None:
            restore_producer_state(self.state, self.place, self.segments, self.snapshots, end_offset)
            recovery_point = end_offset
        else:
            end_offset = self._recover()
            # Nothing was fsynced here, so the recovery point does not move forward.
            recovery_point = min(self.recovery_point or 0, end_offset)
        if end_offset < self.log_start_offset:
            logger.warning(
                "%s: the log ends at offset %d, below its start at %d, as if files had been removed; starting it empty",
                self.place.partition,
                end_offset,
                self.log_start_offset,
            )
            end_offset = recovery_point = self.log_start_offset
            self._start_empty(end_offset)
            self.state.clear(end_offset)
        if self.epochs_are_lost:
            self._rebuild_epochs()
        log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
        self.epochs.truncate_from_end(end_offset)
        self.epochs.truncate_from_start(log_start_offset)
        self.snapshots.remove_outside(self.segments[0].base_offset, end_offset)
        self.snapshots.remove_strays([segment.base_offset for segment in self.segments])
        return LoadedLog(
            self.segments, self.snapshots, self.epochs, self.state, log_start_offset, end_offset, recovery_point
        )

    def _open_segments(self, names: Sequence[str]) -> list[Segment]:
        there = set(names)
        segments = []
        for name in names:
            stem, suffix = name[:20], name[20:]
            base_offset = offset_of(name)
            if base_offset is None:
                continue
            if suffix == LOG_SUFFIX:
                size_bytes = (self.place.folder / name).stat().st_size
                segments.append(self._segment(base_offset, size_bytes))
            elif suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX) and stem + LOG_SUFFIX not in there:
                logger.warning("%s: removing %s, which has no log file", self.place.partition, name)
                (self.place.folder / name).unlink()
        return sorted(segments, key=lambda segment: segment.base_offset)

    def _segment(self, base_offset: int, size_bytes: int) -> Segment:
        place = self.place
        return Segment(
            place.folder,
            base_offset,
            size_bytes=size_bytes,
            files=place.files,
            config=self.config,
            now_ms=place.now_ms,
        )

    def _open_epochs(self) -> tuple[LeaderEpochs, bool]:
        """The leader epochs, and whether they are lost. A log without batches has none to lose."""
        path = self.place.folder / leader_epochs.FILE_NAME
        try:
            return LeaderEpochs.load(path), False
        except (FileNotFoundError, CorruptLeaderEpochsError) as error:
            if any(segment.size_bytes for segment in self.segments):
                logger.warning("%s: rebuilding the leader epochs: %s", self.place.partition, error)
                return LeaderEpochs(path), True
            return LeaderEpochs(path), False

    def _rebuild_epochs(self) -> None:
        starts: list[EpochStart] = []
        for segment in self.segments:
            for batch in segment.batches():
                if batch.header.leader_epoch > (starts[-1].epoch if starts else leader_epochs.NO_EPOCH):
                    starts.append(EpochStart(batch.header.leader_epoch, batch.header.base_offset))
        self.epochs.replace(starts)

    def _end_after_clean_stop(self) -> int | None:
        """The end of the log, if it is where the stop has left it."""
        try:
            end_offset = self.segments[-1].read_next_offset()
        except (CorruptBatchError, CorruptIndexError) as error:
            logger.warning("%s was stopped cleanly, but is damaged: %s", self.place.partition, error)
            return None
        if self.recovery_point is not None and self.recovery_point != end_offset:
            logger.warning(
                "%s was stopped cleanly at offset %d, but ends at %d; recovering it",
                self.place.partition,
                self.recovery_point,
                end_offset,
            )
            return None
        return end_offset

    def _start_empty(self, offset: int) -> None:
        self._remove_segments(self.segments)
        self.snapshots.remove_outside(offset, offset - 1)
        self.epochs.clear()
        self.epochs_are_lost = False
        place = self.place
        self.segments = [
            Segment.create(place.folder, offset, files=place.files, config=self.config, now_ms=place.now_ms)
        ]

    def _remove_segments(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            logger.warning("%s: removing %s", self.place.partition, segment)
            self.place.delete_later(segment.rename_deleted(), self.config.file_delete_delay_ms)

    def _recover(self) -> int:
        """Check and count again what is above the recovery point. Returns the end of the log."""
        recovery_point = self.recovery_point or 0
        self._recover_from(recovery_point)
        if self.state.map_end_offset < recovery_point:
            logger.warning(
                "%s: the log ends at %d, below its recovery point %d, which is not believed then; reading all of it",
                self.place.partition,
                self.state.map_end_offset,
                recovery_point,
            )
            self._recover_from(0)
        return self.state.map_end_offset

    def _recover_from(self, recovery_point: int) -> None:
        bases = [segment.base_offset for segment in self.segments]
        first = max(0, bisect_right(bases, recovery_point) - 1)
        start_offset, position = self._scan_start(self.segments[first], recovery_point)
        self.snapshots.remove_outside(0, start_offset)
        restore_producer_state(self.state, self.place, self.segments, self.snapshots, start_offset)
        total_bytes = sum(segment.size_bytes for segment in self.segments[first:]) - position
        self.progress = Progress(f"recovering {self.place.partition}", total_bytes, "bytes")
        for number in range(first, len(self.segments)):
            segment = self.segments[number]
            if number > first:
                self._warn_of_gap(segment)
                self.state.map_end_offset = segment.base_offset
                self.snapshots.write(segment.base_offset, self.state.take_snapshot())
                segment.reset_indexes()
                segment.txn_index.reset()
                position = 0
            if not self._recover_segment(segment, position):
                self._remove_segments(self.segments[number + 1 :])
                del self.segments[number + 1 :]
                break

    def _warn_of_gap(self, segment: Segment) -> None:
        """Compaction leaves gaps, so this is no proof of a loss, and nothing is cut off for it."""
        if segment.base_offset > self.state.map_end_offset and not self.config.is_compacted:
            logger.warning(
                "%s: there is nothing between offset %d and the segment that starts at %d",
                self.place.partition,
                self.state.map_end_offset,
                segment.base_offset,
            )

    def _scan_start(self, segment: Segment, recovery_point: int) -> tuple[int, int]:
        """Offset and position from which the segment is to be scanned. Its indexes end there."""
        try:
            offset_index, time_index = segment.open_indexes()
            offset_index.check_order()
            time_index.check_order()
            segment.txn_index.sanity_check()
            entry = offset_index.lookup(recovery_point - 1)
            batch = next(segment.batches(entry.position))
            if entry.position == 0 or batch.header.last_offset != entry.offset:
                raise CorruptIndexError(f"no entry below offset {recovery_point} can be used")
            start = batch.header.next_offset, batch.end_position
            segment.truncate_indexes(start[0])
        except (FileNotFoundError, StopIteration, CorruptIndexError, CorruptTxnIndexError, CorruptBatchError) as error:
            logger.debug("%s: scanning %s from its start: %s", self.place.partition, segment, error)
            segment.reset_indexes()
            segment.txn_index.reset()
            start = segment.base_offset, 0
        return start

    def _recover_segment(self, segment: Segment, position: int) -> bool:
        """Scan from `position`; cut at the first batch that is not whole. Returns whether nothing was cut."""
        state, end_position = self.state, position
        problem = ""
        try:
            for batch in segment.batches(position, whole=True):
                self._check_batch(segment, batch, state.map_end_offset)
                segment.add_to_indexes(batch.header, batch.position)
                self.progress.add(batch.header.size_bytes)
                if batch.header.leader_epoch > self.epochs.latest_epoch:
                    self.epochs.assign(batch.header.leader_epoch, batch.header.base_offset)
                replay_batch(state, batch, segment, index_aborted=True)
                end_position = batch.end_position
        except CorruptBatchError as error:
            problem = error.message
        lost_bytes = segment.size_bytes - end_position
        if lost_bytes:
            self._refuse_old_format(segment, end_position)
            logger.warning(
                "%s: cutting %d bytes off the end of %s, from byte %d and offset %d on: %s",
                self.place.partition,
                lost_bytes,
                segment.log_file.path,
                end_position,
                state.map_end_offset,
                problem,
            )
            segment.truncate_log(end_position)
        segment.become_inactive()
        return not lost_bytes

    def _check_batch(self, segment: Segment, batch: FileBatch, expected_offset: int) -> None:
        header = batch.header
        size = batch.end_position - batch.position
        if crc_of(batch.data, batch.start, size) != header.crc:
            raise CorruptBatchError(f"the CRC of the batch at byte {batch.position} does not match")
        if header.base_offset < expected_offset or header.last_offset_delta < 0:
            raise CorruptBatchError(f"offset {header.base_offset} at byte {batch.position} is not {expected_offset}")
        if header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
            raise CorruptBatchError(f"offset {header.last_offset} is too far from the segment's base offset")

    def _refuse_old_format(self, segment: Segment, position: int) -> None:
        """A batch of before Kafka 0.11 is no damage, and must not be cut off as such."""
        head = segment.read_bytes(position, min(segment.size_bytes - position, 17))
        if len(head) < 17 or head[16] not in (0, 1):
            return
        size = int.from_bytes(head[8:12], "big")
        if not 14 <= size <= segment.size_bytes - position - 12:
            return
        message = segment.read_bytes(position + 12, size)
        if zlib.crc32(message[4:]) == int.from_bytes(message[:4], "big"):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                f"{segment.log_file.path} has messages of format {head[16]} (before Kafka 0.11), which cannot be read",
            )
