"""The log of one partition: a folder of segments, of which the last is appended to.

Theory of operation
-------------------
`append` is the only way in, and its order is fixed: see there. What it writes is in the page cache when it returns;
`recovery_point` says up to where it is on disk, and moves with `flush`. Indexes, snapshots and leader epochs are
written along without fsync, because all of them can be rebuilt from the batches above the recovery point; a flush
fsyncs them first, so that below it they can be believed.

After a clean stop the start and the end of a log are known from checkpoints. Its folder is not even listed until
something else is asked of it: `_loaded` is made at first use.

An error before or during the write leaves the log as it was. One after it means that the batches are on disk and what
follows from them is not: such a log refuses to go on until it is opened again, which brings both together. The next
append tries that if the disk was full. After any other error only the operator can know what the disk is worth.
"""

from __future__ import annotations

import errno
import logging
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NO_TIMESTAMP, TopicPartition
from oncelog.storage import partition_metadata
from oncelog.storage.append_checks import check_batches
from oncelog.storage.atomic_file import replace_file
from oncelog.storage.batch_placement import PlacedBatches, accept_batches, place_batches
from oncelog.storage.flush_work import FlushWork
from oncelog.storage.leader_epochs import EpochEnd, LeaderEpochs
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_reader import LogReader, ReadResult
from oncelog.storage.producer_state import (
    CompletedTxn,
    DuplicateBatch,
    Origin,
    PendingAppend,
    ProducerStateManager,
    VerificationGuard,
)
from oncelog.storage.recovery import (
    LoadedLog,
    LogPlace,
    complete_txn,
    load_log,
    rebuild_txn_index,
    restore_producer_state,
)
from oncelog.storage.retention import count_deletable
from oncelog.storage.segment import SEGMENT_SUFFIXES, FoundTimestamp, Segment, file_name
from oncelog.storage.segment_swap import CleanedSegment, swap_in
from oncelog.storage.txn_index import AbortedTxn, CorruptTxnIndexError


@dataclass(slots=True)
class AppendInfo:
    first_offset: int
    last_offset: int
    log_append_time: int = NO_TIMESTAMP
    """-1 with CreateTime. A duplicate is answered with the timestamp it was written with."""
    max_timestamp: int = NO_TIMESTAMP
    log_start_offset: int = 0
    duplicate: bool = False
    completed: list[CompletedTxn] = field(default_factory=list)


__all__ = ["AppendInfo", "Log", "LogPlace", "Origin", "ReadResult"]

REPAIR_SPACE_BYTES: Final = 64 * 1024
"""Must be free on the disk before a log is repaired."""

logger = logging.getLogger("oncelog.storage")


def _nothing() -> None:
    return None


class Log:
    topic_partition: TopicPartition
    config: LogConfig
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    """Below it, batches and all that follows from them are on disk: recovery starts here."""
    durable_offset: int
    """Below it, batches are on disk. Never less than the recovery point."""

    def __init__(
        self,
        place: LogPlace,
        config: LogConfig,
        *,
        clean: bool,
        log_start_offset: int | None = None,
        recovery_point: int | None = None,
        on_truncated: Callable[[], None] = _nothing,
    ) -> None:
        """Open a folder. None for an offset means that no checkpoint has it.

        `on_truncated` is called before anything is appended to a log that was cut below its recovery point. It must
        write the recovery points down: the old one would vouch for batches that are not on disk.
        """
        self._place = place
        self.topic_partition = place.partition
        self.config = config
        self._clean = clean
        self._on_truncated = on_truncated
        self._given_recovery_point = recovery_point
        self._failure = ""
        self._can_be_repaired = False
        self._generation = 0
        self._folder_changes = self._folder_changes_synced = 0
        self._first_unflushed_ms: int | None = None
        self.log_start_offset = log_start_offset or 0
        self.log_end_offset = self.recovery_point = self.durable_offset = recovery_point or 0
        if not clean or log_start_offset is None or recovery_point is None:
            self.load()

    @classmethod
    def create(
        cls, place: LogPlace, config: LogConfig, topic_id: uuid.UUID, *, on_truncated: Callable[[], None] = _nothing
    ) -> Log:
        """Make the folder of a new log. Its names are made durable by the first flush, not here."""
        place.folder.mkdir()
        try:
            partition_metadata.write_topic_id(place.folder, topic_id, durable=False)
            log = cls(place, config, clean=True, on_truncated=on_truncated)
        except OSError:
            shutil.rmtree(place.folder, ignore_errors=True)
            raise
        log._folder_changes += 1
        return log

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"

    @cached_property
    def topic_id(self) -> uuid.UUID | None:
        return partition_metadata.read_topic_id(self._place.folder)

    @cached_property
    def _loaded(self) -> LoadedLog:
        loaded = self._load(clean=self._clean, recovery_point=self._given_recovery_point)
        is_as_it_was_left = self._clean and loaded.recovery_point == self._given_recovery_point
        self._folder_changes += not is_as_it_was_left
        return loaded

    def _load(self, *, clean: bool, recovery_point: int | None) -> LoadedLog:
        loaded = load_log(
            self._place,
            self.config,
            clean=clean,
            log_start_offset=self.log_start_offset,
            recovery_point=recovery_point,
        )
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = self.durable_offset = loaded.recovery_point
        return loaded

    @cached_property
    def _reader(self) -> LogReader:
        return LogReader(self._loaded.segments)

    def load(self) -> None:
        """Read what is on disk now rather than at first use."""
        _ = self._loaded

    def reconfigure(self, config: LogConfig) -> None:
        """From the next append on; index settings with the next segment."""
        self.config = config
        if self.is_loaded:
            self.producer_state.producer_expiration_ms = config.producer_id_expiration_ms

    @property
    def is_loaded(self) -> bool:
        return "_loaded" in self.__dict__

    @property
    def producer_state(self) -> ProducerStateManager:
        return self._loaded.producer_state

    @property
    def leader_epochs(self) -> LeaderEpochs:
        return self._loaded.leader_epochs

    @property
    def segments(self) -> Sequence[Segment]:
        return self._loaded.segments

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._loaded.segments)

    @property
    def folder(self) -> Path:
        return self._place.folder

    @property
    def has_failed(self) -> bool:
        return bool(self._failure)

    # Appending

    def append(
        self,
        data: bytes | memoryview,
        *,
        leader_epoch: int,
        origin: Origin,
        now_ms: int,
        guard: VerificationGuard | None = None,
        marker_tv: int = 0,
    ) -> AppendInfo:
        """Append one or more batches, all or none. Raises KafkaError.

        Origin REPLICATION keeps the offsets and epochs that the leader has given; all others get them here.
        """
        if self._failure:
            self._repair()
        loaded = self._ready()
        state = loaded.producer_state
        # 1. Headers and the topic's rules. 2. CRC.
        batches = check_batches(data, origin=origin, config=self.config, now_ms=now_ms, partition=self.topic_partition)
        if origin is Origin.REPLICATION:
            placed = accept_batches(batches, self.log_end_offset, leader_epoch, self.topic_partition)
        else:
            placed = place_batches(batches, self.log_end_offset, leader_epoch)
        headers = placed.headers
        if not headers:
            return AppendInfo(self.log_end_offset, self.log_end_offset - 1, log_start_offset=self.log_start_offset)
        # 3. Producer state: accept, duplicate or error, for all batches before any is written.
        pending = PendingAppend() if len(headers) > 1 else None
        for header, control in zip(headers, placed.controls, strict=True):
            duplicate = state.check(
                header, origin=origin, control=control, guard=guard, marker_tv=marker_tv, pending=pending
            )
            if duplicate is not None:
                return self._duplicate_info(duplicate)
        max_timestamp = max(header.max_timestamp for header in headers)
        last_offset = headers[-1].last_offset
        try:
            # 4. Roll if due.
            segment = self._segment_for(placed, last_offset, max_timestamp, now_ms)
            for header in headers:
                if header.leader_epoch != loaded.leader_epochs.latest_epoch and header.leader_epoch >= 0:
                    loaded.leader_epochs.assign(header.leader_epoch, header.base_offset)
            # 5. Write.
            failpoints.hit("log.append.before_write")
            segment.write(placed.buffers, placed.size_bytes)
        except OSError as error:
            raise self._storage_error(f"nothing was appended: {error}") from error
        completed: list[CompletedTxn] = []
        try:
            failpoints.hit("log.append.after_write")
            # 6. Indexes.
            segment.commit_write(headers)
            failpoints.hit("log.append.after_indexes")
            # 7. Producer state. 8. Transaction index, then the transaction is over.
            for header, control in zip(headers, placed.controls, strict=True):
                ended = state.apply(header, control=control, now_ms=now_ms)
                if ended is not None:
                    failpoints.hit("log.append.before_txn_index")
                    complete_txn(state, ended, segment)
                    completed.append(ended)
            # 9. End offset.
            self.log_end_offset = last_offset + 1
            if self._first_unflushed_ms is None:
                self._first_unflushed_ms = now_ms
            if self.log_end_offset - self.recovery_point >= self.config.flush_messages:
                self.flush()
        except Exception as error:
            if not self._failure:
                self._fail("an append failed half way", error)
            if isinstance(error, OSError):
                raise self._storage_error(self._failure) from error
            raise
        return AppendInfo(
            first_offset=headers[0].base_offset,
            last_offset=last_offset,
            log_append_time=now_ms if self.config.stamps_append_time else NO_TIMESTAMP,
            max_timestamp=max_timestamp,
            log_start_offset=self.log_start_offset,
            completed=completed,
        )

    def _fail(self, what: str, error: Exception) -> None:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        self._can_be_repaired = is_full
        self._failure = f"{what} and the log must be recovered{'' if is_full else '; restart the broker'}: {error}"

    def _ready(self) -> LoadedLog:
        try:
            return self._loaded
        except OSError as error:
            raise self._storage_error(f"could not be opened: {error}") from error

    def _repair(self) -> None:
        """Open the log again after an append that failed half way. Until that succeeds it can be read as it was."""
        if not self._can_be_repaired:
            raise self._storage_error(self._failure)
        before = self._loaded
        try:
            # Nothing may be touched on a disk that is still full.
            replace_file(self._place.folder / "space", bytes(REPAIR_SPACE_BYTES), durable=False)
            (self._place.folder / "space").unlink()
            loaded = self._load(clean=False, recovery_point=self.recovery_point)
        except OSError as error:
            raise self._storage_error(f"{self._failure}. It could not be recovered yet: {error}") from error
        for segment in before.segments:
            segment.close()
        loaded.producer_state.on_high_watermark(before.producer_state.high_watermark)
        self.__dict__.pop("_reader", None)
        self.__dict__["_loaded"] = loaded
        self._failure, self._can_be_repaired = "", False
        self._folder_changes += 1
        logger.warning("%s: recovered, and goes on at offset %d", self.topic_partition, self.log_end_offset)

    def _duplicate_info(self, duplicate: DuplicateBatch) -> AppendInfo:
        return AppendInfo(
            first_offset=duplicate.base_offset,
            last_offset=duplicate.last_offset,
            log_append_time=duplicate.timestamp,
            max_timestamp=duplicate.timestamp,
            log_start_offset=self.log_start_offset,
            duplicate=True,
        )

    def _segment_for(self, placed: PlacedBatches, last_offset: int, max_timestamp: int, now_ms: int) -> Segment:
        """The active segment, or a new one if it is too large, too old or its indexes are full."""
        config = self.config
        if placed.size_bytes > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{self.topic_partition}: {placed.size_bytes} bytes exceed segment.bytes={config.segment_bytes}",
            )
        segment = self._loaded.segments[-1]
        if segment.should_roll(
            added_bytes=placed.size_bytes,
            last_offset=last_offset,
            max_timestamp=max_timestamp,
            now_ms=now_ms,
            config=config,
            name=self.topic_partition.topic,
        ):
            return self._roll(now_ms, placed.headers[0].base_offset)
        return segment

    def roll(self, now_ms: int) -> Segment:
        """Start a new segment at the end of the log. Nothing happens if the active one is empty."""
        try:
            return self._roll(now_ms, self.log_end_offset)
        except OSError as error:
            raise self._storage_error(f"could not roll: {error}") from error

    def _roll(self, now_ms: int, base_offset: int) -> Segment:
        """The old segment is complete on disk, except for fsync, before the new one is there."""
        loaded = self._loaded
        active = loaded.segments[-1]
        if active.base_offset == base_offset:
            return active
        failpoints.hit("log.roll.before")
        active.become_inactive()
        failpoints.hit("log.roll.before_snapshot")
        loaded.producer_state.map_end_offset = base_offset
        loaded.snapshots.write(base_offset, loaded.producer_state.take_snapshot())
        failpoints.hit("log.roll.before_create")
        loaded.segments.append(self._create_segment(base_offset, now_ms))
        segment = loaded.segments[-1]
        self._folder_changes += 1
        failpoints.hit("log.roll.after")
        return segment

    def _create_segment(self, base_offset: int, now_ms: int) -> Segment:
        """On OSError nothing is left of it: the old segment grows then, and this one would lie in the middle of it."""
        place = self._place
        try:
            return Segment.create(place.folder, base_offset, files=place.files, config=self.config, now_ms=now_ms)
        except OSError:
            try:
                for suffix in SEGMENT_SUFFIXES:
                    (place.folder / file_name(base_offset, suffix)).unlink(missing_ok=True)
            except OSError as error:
                self._fail("a segment could be neither created nor removed", error)
            raise

    # Reading

    def read(self, offset: int, max_bytes: int, *, end_offset: int, min_one_batch: bool = True) -> ReadResult:
        """Whole batches of one segment from `offset` on and below `end_offset`, up to `max_bytes`.

        With `min_one_batch` the first one comes even if it is larger. Where nothing is left in a segment, the next one
        is read. OFFSET_OUT_OF_RANGE outside of the log.
        """
        reader = self._reader
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} has offsets {self.log_start_offset} to {self.log_end_offset}, not {offset}",
            )
        end_offset = min(end_offset, self.log_end_offset)
        try:
            return reader.read(
                offset,
                max_bytes,
                end_offset=end_offset,
                reads_to_end=end_offset == self.log_end_offset,
                min_one_batch=min_one_batch,
            )
        except OSError as error:
            raise self._storage_error(f"could not read offset {offset}: {error}") from error

    def available_bytes(self, offset: int, *, end_offset: int) -> int:
        """How many bytes there are to read from `offset` on, without reading them; 0 outside of the log."""
        end_offset = min(end_offset, self.log_end_offset)
        if not self.log_start_offset <= offset < end_offset:
            return 0
        reads_to_end = end_offset == self.log_end_offset
        return self._reader.available_bytes(offset, end_offset=end_offset, reads_to_end=reads_to_end)

    def aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedTxn]:
        """Aborted transactions with data in [fetch_offset, upper_bound), in the order of their markers."""
        loaded = self._loaded
        aborted: list[AbortedTxn] = []
        for segment in loaded.segments[self._reader.segment_number(fetch_offset) :]:
            try:
                search = segment.collect_aborted(fetch_offset, upper_bound)
            except CorruptTxnIndexError:
                rebuild_txn_index(self._place, self.config, loaded.segments, loaded.snapshots, segment)
                search = segment.collect_aborted(fetch_offset, upper_bound)
            aborted += search.aborted
            if search.complete:
                break
        return aborted

    def offset_for_timestamp(self, timestamp: int, *, end_offset: int) -> FoundTimestamp | None:
        """The first record below `end_offset` whose timestamp is not below `timestamp`."""
        for segment in self._loaded.segments:
            if segment.largest.timestamp >= timestamp:
                found = segment.find_timestamp(timestamp, self.log_start_offset)
                if found is not None:
                    return found if found.offset < end_offset else None
        return None

    def max_timestamp_offset(self) -> FoundTimestamp | None:
        """The first record that has the largest timestamp of the log."""
        return max(self._loaded.segments, key=lambda segment: segment.largest.timestamp).find_largest_timestamp()

    def earliest_offset(self) -> FoundTimestamp:
        return FoundTimestamp(
            NO_TIMESTAMP, self.log_start_offset, self.leader_epochs.epoch_for_offset(self.log_start_offset)
        )

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        return self.leader_epochs.end_offset_for_epoch(epoch, self.log_end_offset)

    # Cutting

    def truncate_to(self, offset: int) -> int:
        """Remove everything from `offset` on, and the rest of the batch it lies in. Returns the new end.

        Kafka would leave the end at `offset` even within a batch. Then the end would jump back with the next restart.
        """
        loaded = self._loaded
        if offset >= self.log_end_offset:
            return self.log_end_offset
        if offset <= loaded.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return offset
        failpoints.hit("log.truncate.before")
        self._generation += 1
        number = self._reader.segment_number(offset)
        self._drop_segments(loaded.segments[number + 1 :])
        end_offset = loaded.segments[-1].truncate_to(offset)
        self._after_truncation(end_offset)
        restore_producer_state(loaded.producer_state, self._place, loaded.segments, loaded.snapshots, end_offset)
        return end_offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything; the log is empty and goes on at `offset`."""
        loaded = self._loaded
        failpoints.hit("log.truncate.before")
        self._generation += 1
        self._drop_segments(list(loaded.segments))
        place = self._place
        loaded.segments.append(
            Segment.create(place.folder, offset, files=place.files, config=self.config, now_ms=place.now_ms)
        )
        self.log_start_offset = offset
        loaded.leader_epochs.clear()
        loaded.producer_state.clear(offset)
        loaded.snapshots.remove_outside(offset, offset - 1)
        self._after_truncation(offset)

    def _after_truncation(self, end_offset: int) -> None:
        loaded = self._loaded
        self._reader.forget_positions()
        self.log_end_offset = end_offset
        self.log_start_offset = min(self.log_start_offset, end_offset)
        loaded.leader_epochs.truncate_from_end(end_offset)
        loaded.snapshots.remove_outside(loaded.segments[0].base_offset, end_offset)
        self.durable_offset = min(self.durable_offset, end_offset)
        if end_offset < self.recovery_point:
            self.recovery_point = end_offset
            self._on_truncated()

    def delete_records(self, before: int) -> int:
        """Raise the log start offset to `before` and remove segments that lie below. Returns the log start offset."""
        if before > self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} ends at {self.log_end_offset}, records before {before} cannot be deleted",
            )
        self._raise_log_start(before)
        segments = self._loaded.segments
        count = 0
        while count + 1 < len(segments) and segments[count + 1].base_offset <= self.log_start_offset:
            count += 1
        self._delete_first_segments(count)
        return self.log_start_offset

    def delete_old_segments(self, now_ms: int, *, high_watermark: int | None = None) -> int:
        """Apply retention. Segments that reach beyond the high watermark stay. Returns how many were deleted."""
        loaded = self._loaded
        count = count_deletable(
            loaded.segments,
            self.config,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=self.log_end_offset if high_watermark is None else high_watermark,
            now_ms=now_ms,
        )
        if count == len(loaded.segments):
            self.roll(now_ms)
        if count:
            self._raise_log_start(loaded.segments[count].base_offset)
            self._delete_first_segments(count)
        return count

    def _raise_log_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)
            self.producer_state.on_log_start_offset(offset)

    def _delete_first_segments(self, count: int) -> None:
        loaded = self._loaded
        if count:
            self._drop_segments(loaded.segments[:count])
            loaded.snapshots.remove_outside(loaded.segments[0].base_offset, self.log_end_offset)

    # Compaction

    @property
    def generation(self) -> int:
        """Changes whenever the log is cut."""
        return self._generation

    def repair_txn_index(self, base_offset: int) -> None:
        """Rebuild the transaction index of the segment that starts there."""
        loaded = self._loaded
        segment = loaded.segments[self._reader.segment_number(base_offset)]
        rebuild_txn_index(self._place, self.config, loaded.segments, loaded.snapshots, segment)

    def replace_segments(self, cleaned: CleanedSegment) -> bool:
        """Put a cleaned segment in the place of those it was made from. False, and nothing done, if they are gone.

        Snapshots from before its end go too. They may know of a transaction whose marker the cleaner has removed along
        with the data, which would be open for ever in a state that is restored from them.
        """
        loaded, place = self._loaded, self._place
        first = self._reader.segment_number(cleaned.base_offset)
        end = first + len(cleaned.replaces)
        replaced = loaded.segments[first:end]
        if (
            self._failure
            or cleaned.generation != self._generation
            or end >= len(loaded.segments)
            or [(segment.base_offset, segment.size_bytes) for segment in replaced] != list(cleaned.replaces)
        ):
            return False
        segment = Segment(
            place.folder,
            cleaned.base_offset,
            size_bytes=cleaned.size_bytes,
            files=place.files,
            config=self.config,
            now_ms=replaced[-1].created_ms,
        )
        deleted: list[Path] = []
        try:
            swap_in(cleaned.files, lambda: deleted.extend(path for old in replaced for path in old.rename_deleted()))
            # Until here the old ones are found, so that a reader after a failed rename meets an error and not a gap.
            loaded.segments[first:end] = [segment]
            self._reader.forget_positions()
            self._folder_changes += 1
            place.delete_later(deleted, self.config.file_delete_delay_ms)
            loaded.snapshots.remove_outside(loaded.segments[first + 1].base_offset, self.log_end_offset)
        except OSError as error:
            self._fail("a swap of segments failed half way", error)
            raise self._storage_error(self._failure) from error
        return True

    def _drop_segments(self, dropped: Sequence[Segment]) -> None:
        """Out of the list first, so that nobody finds them; files are renamed and unlinked later."""
        segments = self._loaded.segments
        self._reader.forget_positions()
        for segment in dropped:
            segments.remove(segment)
            failpoints.hit("log.delete.before_rename")
            self._place.delete_later(segment.rename_deleted(), self.config.file_delete_delay_ms)
            self._folder_changes += 1

    # Flushing and closing

    def prepare_flush(self, *, batches_only: bool = False) -> FlushWork | None:
        """The files to be fsynced so that the recovery point can move to the end of the log. None if it is there.

        With `batches_only`, for an acknowledgement that must survive a power cut, it is the durable offset that moves:
        fewer files, and the same data are safe.
        """
        if not self.is_loaded or self._failure:
            return None
        reached = self.durable_offset if batches_only else self.recovery_point
        folder_changes = self._folder_changes
        is_folder_synced = folder_changes == self._folder_changes_synced
        if reached >= self.log_end_offset and is_folder_synced:
            return None
        segments = self._loaded.segments[self._reader.segment_number(reached) :]
        try:
            files = [segment.log_file.path for segment in segments] if batches_only else self._files_to_flush(segments)
        except OSError as error:
            raise self._storage_error(f"could not write an index: {error}") from error
        self._first_unflushed_ms = None
        return FlushWork(
            self.topic_partition,
            tuple(files),
            None if is_folder_synced else self._place.folder,
            self.log_end_offset,
            self._generation,
            is_complete=not batches_only,
            folder_changes=folder_changes,
        )

    def _files_to_flush(self, segments: Sequence[Segment]) -> list[Path]:
        loaded = self._loaded
        files: list[Path] = []
        for segment in segments:
            segment.write_index_tails()
            files += segment.paths()
        files += [loaded.snapshots.path(offset) for offset in sorted(loaded.snapshots.unsynced)]
        loaded.snapshots.unsynced.clear()
        if loaded.leader_epochs.is_unsynced:
            files.append(loaded.leader_epochs.path)
            loaded.leader_epochs.is_unsynced = False
        return files

    def finish_flush(self, work: FlushWork) -> None:
        """The work is done: its end is the recovery point, unless the log was cut since."""
        self._folder_changes_synced = max(self._folder_changes_synced, work.folder_changes)
        if work.generation == self._generation:
            self.durable_offset = max(self.durable_offset, work.end_offset)
            if work.is_complete:
                self.recovery_point = max(self.recovery_point, work.end_offset)

    def fail_flush(self, error: Exception) -> None:
        """The kernel has dropped what it could not write: only recovery can tell what is there."""
        self._can_be_repaired = False
        self._failure = f"fsync failed and the log must be recovered; restart the broker: {error}"

    def flush(self) -> None:
        """Everything appended so far is on disk when this returns."""
        work = self.prepare_flush()
        if work is None:
            return
        try:
            work.run()
        except OSError as error:
            self.fail_flush(error)
            raise self._storage_error(self._failure) from error
        self.finish_flush(work)

    def is_flush_due(self, now_ms: int) -> bool:
        """By `flush.ms`."""
        since_ms = self._first_unflushed_ms
        return since_ms is not None and now_ms - since_ms >= self.config.flush_ms

    def close(self, clean: bool = True) -> bool:
        """Give descriptors back; if `clean`, after everything is written and fsynced. Returns whether that is so."""
        if not self.is_loaded:
            return True
        is_clean = clean and not self._failure
        if is_clean:
            try:
                self._write_final_state()
            except OSError as error:
                raise self._storage_error(f"could not be closed: {error}") from error
            self.flush()
        for segment in self._loaded.segments:
            segment.close()
        return is_clean

    def _write_final_state(self) -> None:
        loaded = self._loaded
        loaded.segments[-1].become_inactive()
        # A log whose first segment is empty has a snapshot from its roll, or producers it never had.
        if self.log_end_offset > loaded.segments[0].base_offset and self.log_end_offset not in loaded.snapshots.offsets:
            loaded.snapshots.write(self.log_end_offset, loaded.producer_state.take_snapshot())
            self._folder_changes += 1
        loaded.snapshots.remove_strays([segment.base_offset for segment in loaded.segments])

    def _storage_error(self, message: str) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} in {self._place.folder}: {message}")
