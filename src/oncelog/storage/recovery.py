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

The log start comes from a checkpoint, too. It is believed if it lies within the log. Otherwise deleted records may be
back, and no other is lost.

The producer state at the start of the scan comes from the newest snapshot below it and the headers in between. A
snapshot that is damaged or missing makes that way longer, nothing else.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Sequence
from typing import Final

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.batch import BatchHeader, CorruptBatchError
from oncelog.storage import leader_epochs
from oncelog.storage.checkpoint_lines import CorruptCheckpointError
from oncelog.storage.index_file import CorruptIndexError
from oncelog.storage.interrupted_files import finish_interrupted_work
from oncelog.storage.leader_epochs import EpochStart, LeaderEpochs
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_files import LogFiles
from oncelog.storage.log_place import LogPlace
from oncelog.storage.offset_index import RELATIVE_OFFSET_MAX
from oncelog.storage.producer_replay import replay_batch, restore_producer_state
from oncelog.storage.producer_state import ProducerStateManager
from oncelog.storage.progress_log import ProgressLog
from oncelog.storage.segment import Segment, segment_number
from oncelog.storage.segment_batches import FileBatch
from oncelog.storage.segment_names import LOG_SUFFIX, SEGMENT_SUFFIXES, TXN_INDEX_SUFFIX, offset_of
from oncelog.storage.segment_notes import SegmentNotes
from oncelog.storage.snapshot_files import SnapshotFiles, snapshot_offsets
from oncelog.storage.txn_index import CorruptTxnIndexError
from oncelog.storage.txn_index_keeper import TxnIndexKeeper

logger = logging.getLogger("oncelog.storage")

CHECKED_WHEN_OPENED_BYTES_MAX: Final = 64 * 1024
"""The transaction index of a larger active segment without a note is compared with its markers in steps, when it is
first used: a KiB takes up to half a millisecond. Until then no note is taken of it, so that after a kill the segment
is read from its start."""


class LoadedLog(NamedTuple):
    files: LogFiles
    log_start_offset: int
    log_end_offset: int
    recovery_point: int


def load_log(
    place: LogPlace,
    config: LogConfig,
    *,
    clean: bool,
    log_start_offset: int,
    recovery_point: int | None,
) -> LoadedLog:
    """Open a log's folder. `recovery_point` is None if no checkpoint mentions the log."""
    return _Loader(place, config, log_start_offset, recovery_point).load(clean)


class _Loader:
    def __init__(
        self,
        place: LogPlace,
        config: LogConfig,
        log_start_offset: int,
        recovery_point: int | None,
    ) -> None:
        self.place = place
        self.config = config
        self.log_start_offset = log_start_offset
        self.recovery_point = recovery_point
        names = finish_interrupted_work(place.folder, place.delete_later)
        self.notes = SegmentNotes.load(place.folder)
        self.segments = self._open_segments(names)
        self.snapshots = SnapshotFiles(place.folder, snapshot_offsets(names))
        self.epochs, self.epochs_are_lost = self._open_epochs()
        self.state = ProducerStateManager(place.partition, producer_expiration_ms=config.producer_id_expiration_ms)
        self.progress = ProgressLog("", 0, "")

    def load(self, clean: bool) -> LoadedLog:
        if not self.segments:
            self._start_empty(self.log_start_offset)
        self._restore_first_snapshot()
        end_offset = self._end_after_clean_stop() if clean else None
        if end_offset is not None:
            if end_offset > self.segments[0].base_offset and end_offset not in self.snapshots.offsets:
                logger.warning(
                    "%s: the producer snapshot of a clean stop at offset %d is missing; reading the batches instead",
                    self.place.partition,
                    end_offset,
                )
            self._restore_state(end_offset)
            recovery_point = end_offset
        else:
            end_offset = self._recover()
            # Nothing was fsynced here, so the recovery point does not move forward.
            recovery_point = min(self.recovery_point or 0, end_offset)
        self._check_log_start(end_offset)
        if self.epochs_are_lost or not self._are_epochs_right(end_offset):
            self._rebuild_epochs()
        log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
        self.epochs.truncate_from_end(end_offset)
        self.epochs.truncate_from_start(log_start_offset)
        self.snapshots.remove_outside(self.segments[0].base_offset, end_offset)
        self.snapshots.remove_strays({segment.base_offset for segment in self.segments})
        keeper = TxnIndexKeeper(
            self.place.partition, self.config, self.segments, self.snapshots, self.notes, self.place.now_ms
        )
        active = self.segments[-1]
        if active.note is not None or active.size_bytes <= CHECKED_WHEN_OPENED_BYTES_MAX:
            # It is not what was noted any more once it is appended to.
            keeper.check(active)
        files = LogFiles(self.place, self.segments, self.snapshots, self.epochs, self.state, keeper)
        return LoadedLog(files, log_start_offset, end_offset, recovery_point)

    def _check_log_start(self, end_offset: int) -> None:
        """What is below the log start is deleted sooner or later, and not on the word of a checkpoint that is wrong."""
        if self.log_start_offset > end_offset:
            logger.warning(
                "%s: its log start offset %d is not used, because the log ends at %d; keeping all from offset %d on",
                self.place.partition,
                self.log_start_offset,
                end_offset,
                self.segments[0].base_offset,
            )
            self.log_start_offset = self.segments[0].base_offset

    def _restore_first_snapshot(self) -> None:
        first_offset = self.segments[0].base_offset
        try:
            if first_offset > 0:
                self.snapshots.restore_first(first_offset)
        except OSError as error:
            logger.warning("%s: its first snapshot is not restored: %s", self.place.partition, error)

    def _restore_state(self, end_offset: int) -> None:
        restore_producer_state(
            self.state,
            self.place.partition,
            self.segments,
            self.snapshots,
            end_offset=end_offset,
            now_ms=self.place.now_ms,
        )

    def _open_segments(self, names: Sequence[str]) -> list[Segment]:
        there = set(names)
        folder = str(self.place.folder)
        segments = []
        for name in names:  # there may be thousands of them
            stem, suffix = name[:20], name[20:]
            if suffix == LOG_SUFFIX:
                base_offset = offset_of(name)
                if base_offset is not None:
                    size_bytes = os.stat(f"{folder}/{name}").st_size  # noqa: PTH116  a Path would take as long again
                    note = self.notes.by_base_offset.get(base_offset)
                    segments.append(
                        Segment(
                            self.place,
                            base_offset,
                            self.config,
                            size_bytes=size_bytes,
                            note=note,
                            lacks_txn_index=stem + TXN_INDEX_SUFFIX not in there,
                        )
                    )
            elif suffix in SEGMENT_SUFFIXES and stem + LOG_SUFFIX not in there and offset_of(name) is not None:
                logger.warning("%s: removing %s, which has no log file", self.place.partition, name)
                (self.place.folder / name).unlink()
        return sorted(segments, key=lambda segment: segment.base_offset)

    def _open_epochs(self) -> tuple[LeaderEpochs, bool]:
        """The leader epochs, and whether they are lost. A log without batches has none to lose."""
        path = self.place.folder / leader_epochs.FILE_NAME
        try:
            return LeaderEpochs.load(path), False
        except (FileNotFoundError, CorruptCheckpointError) as error:
            if any(segment.size_bytes for segment in self.segments):
                logger.warning("%s: rebuilding the leader epochs: %s", self.place.partition, error)
                return LeaderEpochs(path), True
            return LeaderEpochs(path), False

    def _are_epochs_right(self, end_offset: int) -> bool:
        """Whether each epoch starts where its batches do. The file has no checksum, and a digit is soon another."""
        entries = self.epochs.entries
        try:
            last = self._batch_from(end_offset - 1)
            if last is not None and last.last_offset < self.log_start_offset:
                return False  # all records are deleted: the file has no epoch for the batches that are still there
            are_right = last is None or last.leader_epoch == self._noted_epoch(last)
            are_right &= not entries or not self._has_batch_before(entries[0].start_offset)
            for number, (epoch, start_offset) in enumerate(entries):
                next_start = entries[number + 1].start_offset if number + 1 < len(entries) else None
                are_right &= self._starts_epoch(epoch, start_offset, next_start, is_first=number == 0)
        except CorruptBatchError as error:
            logger.warning("%s: the leader epochs are not checked: %s", self.place.partition, error)
            return True
        if not are_right:
            logger.warning("%s: rebuilding the leader epochs: %s do not fit the log", self.place.partition, entries)
        return are_right

    def _noted_epoch(self, batch: BatchHeader) -> int:
        """The log may start within the batch."""
        return self.epochs.epoch_for_offset(max(batch.base_offset, self.log_start_offset))

    def _has_batch_before(self, offset: int) -> bool:
        """Whether a batch of the log begins before `offset`, and so before the first epoch that is known."""
        first = self._batch_from(self.log_start_offset)
        return first is not None and max(first.base_offset, self.log_start_offset) < offset

    def _starts_epoch(self, epoch: int, start_offset: int, end_offset: int | None, *, is_first: bool) -> bool:
        """Compaction may have left no batch of an epoch, and the first entry moves with the log start."""
        first = self._batch_from(start_offset)
        if first is not None and (end_offset is None or first.base_offset < end_offset) and first.leader_epoch != epoch:
            return False
        before = None if is_first else self._batch_from(start_offset - 1)
        return before is None or before.base_offset >= start_offset or before.leader_epoch < epoch

    def _batch_from(self, offset: int) -> BatchHeader | None:
        """The first batch that ends at or above `offset`."""
        for segment in self.segments[segment_number(self.segments, offset) :]:
            found = segment.find(offset) if offset > segment.base_offset else next(segment.batches(), None)
            if found is not None:
                return found.header
        return None

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
        self.segments = [Segment.create(self.place, offset, self.config, now_ms=self.place.now_ms)]

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
                "%s: the log ends at %d, below its recovery point %d, which cannot be right; reading all of it",
                self.place.partition,
                self.state.map_end_offset,
                recovery_point,
            )
            self._recover_from(0)
        return self.state.map_end_offset

    def _recover_from(self, recovery_point: int) -> None:
        first = segment_number(self.segments, recovery_point)
        start_offset, position = self._scan_start(self.segments[first], recovery_point)
        self.snapshots.remove_outside(0, start_offset)
        self._restore_state(start_offset)
        total_bytes = sum(segment.size_bytes for segment in self.segments[first:]) - position
        self.progress = ProgressLog(f"recovering {self.place.partition}", total_bytes, "bytes")
        for number in range(first, len(self.segments)):
            segment = self.segments[number]
            if number > first:
                self._warn_of_gap(segment)
                self.state.map_end_offset = segment.base_offset
                self.snapshots.write(segment.base_offset, self.state.take_snapshot())
                segment.reset_indexes()
                segment.reset_txn_index()
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
            if segment.size_bytes <= self.config.index_interval_bytes:
                raise CorruptIndexError("it is too small for an entry")
            offset_index, time_index = segment.open_indexes()
            offset_index.check_order()
            time_index.check_order()
            self._check_first_aborted(segment)
            entry = offset_index.lookup(recovery_point - 1)
            batch = next(segment.batches(entry.position))
            if entry.position == 0 or batch.header.last_offset != entry.offset:
                raise CorruptIndexError(f"no entry below offset {recovery_point} can be used")
            start = batch.header.next_offset, batch.end_position
            segment.truncate_indexes(start[0])
            segment.check_last_timestamp()
        except (FileNotFoundError, StopIteration, CorruptIndexError, CorruptTxnIndexError, CorruptBatchError) as error:
            logger.debug("%s: scanning %s from its start: %s", self.place.partition, segment, error)
            segment.reset_indexes()
            segment.reset_txn_index()
            start = segment.base_offset, 0
        return start

    def _check_first_aborted(self, segment: Segment) -> None:
        """The entries that were noted are those below the recovery point. They are kept, all others are found anew."""
        note, index = segment.note, segment.txn_index
        index.sanity_check()
        if note is None or not index.starts_with(note.txn_entries, note.txn_crc):
            raise CorruptTxnIndexError(f"{index.path} is not what it was")
        segment.is_txn_index_checked = True

    def _recover_segment(self, segment: Segment, position: int) -> bool:
        """Scan from `position`; cut at the first batch that is not whole. Returns whether nothing was cut."""
        state, epochs = self.state, self.epochs
        end_position = reported_position = position
        latest_epoch, chunk, problem = epochs.latest_epoch, b"", ""
        try:
            for batch in segment.batches(position, checked=True):
                header = batch.header
                self._check_offsets(segment, batch, state.map_end_offset)
                segment.add_to_indexes(header, batch.position)
                if header.leader_epoch > latest_epoch:
                    latest_epoch = header.leader_epoch
                    epochs.assign(latest_epoch, header.base_offset)
                if header.producer_id < 0:
                    state.map_end_offset = header.base_offset + header.last_offset_delta + 1
                else:
                    replay_batch(state, batch, segment, segment.txn_index.append, now_ms=self.place.now_ms)
                end_position = batch.end_position
                if batch.data is not chunk:
                    chunk = batch.data
                    self.progress.add(end_position - reported_position)
                    reported_position = end_position
        except CorruptBatchError as error:
            problem = error.message
        self.progress.add(end_position - reported_position)
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

    def _check_offsets(self, segment: Segment, batch: FileBatch, expected_offset: int) -> None:
        header = batch.header
        base_offset, last_offset_delta = header.base_offset, header.last_offset_delta
        if base_offset < expected_offset or last_offset_delta < 0:
            raise CorruptBatchError(f"offset {base_offset} at byte {batch.position} is not {expected_offset}")
        if base_offset + last_offset_delta - segment.base_offset > RELATIVE_OFFSET_MAX:
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
