"""The log of one partition: a folder of segments, of which the last is appended to.

Theory of operation
-------------------
`append` is the only way in, and its order is fixed: see there. What it writes is in the page cache when it returns;
`recovery_point` says up to where it is on disk, and moves with `flush`. Indexes, snapshots and leader epochs are
written along without fsync, because all of them can be rebuilt from the batches above the recovery point; a flush
fsyncs them first, so that below the recovery point they are right.

After a clean stop the start and the end of a log are known from checkpoints. Its folder is not even listed until
something else is asked of it: `files` is made at first use.

A log has offsets and settings. The rest is done by

    LogHealth       whether an error keeps it from going on, and whether it can be repaired
    LogFiles        its segments and the files beside them: rolling, cutting, deleting, swapping
    LogReader       from offsets to batches
    TxnIndexKeeper  aborted transactions
    Durability      what is on disk, and what the next flush has to do
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Container, Generator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NO_TIMESTAMP
from oncelog.core.steps import at_once
from oncelog.storage import partition_metadata
from oncelog.storage.append_checks import check_batches
from oncelog.storage.append_info import AppendInfo
from oncelog.storage.batch_placement import PlacedBatches, accept_batches, place_batches
from oncelog.storage.durability import Durability
from oncelog.storage.flush_work import FileNotOpened, FlushWork
from oncelog.storage.leader_epochs import EpochEnd, LeaderEpochs
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_files import LogFiles, SegmentLeftBehindError
from oncelog.storage.log_health import LogHealth
from oncelog.storage.log_place import LogPlace
from oncelog.storage.log_reader import ReadResult
from oncelog.storage.producer_replay import complete_txn
from oncelog.storage.producer_state import (
    CompletedTxn,
    Origin,
    PendingAppend,
    ProducerStateManager,
    VerificationGuard,
)
from oncelog.storage.record_examination import Examination
from oncelog.storage.recovery import load_log
from oncelog.storage.segment import Segment, segment_number
from oncelog.storage.segment_swap import CleanedSegment
from oncelog.storage.txn_index import AbortedTxn
from oncelog.storage.txn_index_keeper import SegmentGoneError

logger = logging.getLogger("oncelog.storage")

SEGMENTS_DELETED_AT_ONCE_MAX: Final = 20
"""Their files are renamed one by one, while nobody else is served."""
SMALL_SEGMENTS_MAX: Final = 2_000
SMALL_SEGMENT_BYTES: Final = 1024 * 1024
"""With so many segments, none is rolled below this size: a log is opened while nobody else is served."""


__all__ = ["Log", "LogPlace", "Origin"]


class Log:
    def __init__(
        self,
        place: LogPlace,
        config: LogConfig,
        *,
        clean: bool,
        log_start_offset: int | None = None,
        recovery_point: int | None = None,
        on_truncated: Callable[[], None] = lambda: None,
    ) -> None:
        """Open a folder. None for an offset means that no checkpoint has it.

        `on_truncated` is called before anything is appended to a log that was cut below its recovery point. It must
        write the recovery points: with the old one, batches would count as on disk that are not.
        """
        self._place = place
        self.topic_partition = place.partition
        self.config = config
        self._clean = clean
        self._on_truncated = on_truncated
        self._given_recovery_point = recovery_point
        self._health = LogHealth(place)
        self._latest_ms = place.now_ms
        """The clock at the last append, or when the log was opened."""
        self.log_start_offset = log_start_offset or 0
        self.log_end_offset = recovery_point or 0
        self.durability = Durability(self.log_end_offset)
        are_known = log_start_offset is not None and recovery_point is not None
        if not clean or not are_known or self.log_start_offset > self.recovery_point:
            self.load()

    @classmethod
    def create(
        cls, place: LogPlace, config: LogConfig, topic_id: uuid.UUID, *, on_truncated: Callable[[], None] = lambda: None
    ) -> Log:
        """Make the folder of a new log. Its names are made durable by the first flush, not here."""
        place.folder.mkdir()
        try:
            partition_metadata.write_topic_id(place.folder, topic_id)
            log = cls(place, config, clean=True, on_truncated=on_truncated)
        except OSError:
            import shutil

            shutil.rmtree(place.folder, ignore_errors=True)
            raise
        log.durability.folder_changes += 1
        return log

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"

    def append(
        self,
        data: bytes | memoryview,
        *,
        leader_epoch: int,
        origin: Origin,
        now_ms: int,
        guard: VerificationGuard | None = None,
        marker_tv: int = 0,
        examination: Examination = Examination.IN_PLACE,
    ) -> AppendInfo:
        """Append one or more batches, all or none. Raises KafkaError, and LongExamination if that was asked for.

        Origin REPLICATION keeps the offsets and epochs that the leader has given; all others get them here.
        """
        self._latest_ms = now_ms
        if self._health.failure:
            self.repair()
        files = self._open_files()
        state = files.producer_state
        # 1. Headers and the topic's rules. 2. CRC.
        batches = check_batches(
            data,
            origin=origin,
            config=self.config,
            now_ms=now_ms,
            partition=self.topic_partition,
            examination=examination,
        )
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
                # The original may be from before a crash, and is acknowledged only now.
                self._flush_if_due()
                return AppendInfo.of_duplicate(duplicate, self.log_start_offset)
        max_timestamp = max([header.max_timestamp for header in headers])
        last_offset = headers[-1].last_offset
        try:
            # 4. Roll if due.
            segment = self._segment_for(placed, last_offset, max_timestamp, now_ms)
            for header in headers:
                if header.leader_epoch != files.leader_epochs.latest_epoch and header.leader_epoch >= 0:
                    files.leader_epochs.assign(header.leader_epoch, header.base_offset)
            # 5. Write.
            failpoints.hit("log.append.before_write")
            segment.write(placed.buffers, placed.size_bytes)
        except OSError as error:
            raise self._health.error(f"nothing was appended: {error}") from error
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
                    complete_txn(state, ended, partial(files.txn_indexes.add, segment))
                    completed.append(ended)
                    # The file comes with its first entry, and its name must get to disk as well.
                    self.durability.folder_changes += ended.aborted and len(segment.txn_index) == 1
            # 9. End offset.
            self.log_end_offset = last_offset + 1
            self.durability.on_append(now_ms)
        except Exception as error:
            if not self._health.failure:
                self._health.fail("an append failed half way", error)
            if isinstance(error, OSError):
                raise self._health.error() from error
            raise
        self._flush_if_due()
        return AppendInfo(
            first_offset=headers[0].base_offset,
            last_offset=last_offset,
            log_append_time=now_ms if self.config.stamps_append_time else NO_TIMESTAMP,
            max_timestamp=max_timestamp,
            log_start_offset=self.log_start_offset,
            completed=completed,
        )

    def append_as_follower(self, data: bytes | memoryview, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append what the leader of `leader_epoch` has sent, with the offsets and epochs that it has there.

        The leader's log may start in the middle of a batch, which it sends whole. An empty log then begins with it,
        and its records below the start are there but not in the log.
        """
        start_offset = self.log_start_offset
        if start_offset == self.log_end_offset and len(data):
            partition, origin = self.topic_partition, Origin.REPLICATION
            first = check_batches(data, origin=origin, config=self.config, now_ms=now_ms, partition=partition)[0].header
            if first.base_offset < start_offset <= first.last_offset:
                self.truncate_fully_and_start_at(first.base_offset, now_ms=now_ms)
        info = self.append(data, leader_epoch=leader_epoch, origin=Origin.REPLICATION, now_ms=now_ms)
        if self.log_start_offset < start_offset <= self.log_end_offset:
            self.delete_records(start_offset)
        return info

    def begin_epoch(self, leader_epoch: int) -> None:
        """The broker is elected: what it appends from here on is of this epoch.

        It is noted before anything is appended, because a follower may have an epoch that this log has never seen, and
        must learn where the known ones end. A batch that a failed append has left is of an earlier epoch.
        """
        if self.can_be_repaired and leader_epoch > self.leader_epochs.latest_epoch:
            self.repair()
        with self._health.refusing(f"leader epoch {leader_epoch} could not be noted"):
            self._open_files().leader_epochs.assign(leader_epoch, self.log_end_offset)

    def _flush_if_due(self) -> None:
        """Flush if `flush.messages` have been appended since the last flush."""
        if self.log_end_offset - self.durability.recovery_point >= self.config.flush_messages:
            self.flush()

    def _segment_for(self, placed: PlacedBatches, last_offset: int, max_timestamp: int, now_ms: int) -> Segment:
        """The active segment, or a new one if it is too large, too old or its indexes are full."""
        config = self.config
        if placed.size_bytes > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{self.topic_partition}: {placed.size_bytes} bytes exceed segment.bytes={config.segment_bytes}",
            )
        segment = self.files.segments[-1]
        if segment.should_roll(
            added_bytes=placed.size_bytes,
            last_offset=last_offset,
            max_timestamp=max_timestamp,
            now_ms=now_ms,
            config=config,
            name=self.topic_partition.topic,
        ) and not self._may_grow(segment, last_offset):
            return self._roll(now_ms, placed.headers[0].base_offset)
        return segment

    def _may_grow(self, segment: Segment, last_offset: int) -> bool:
        """Whether an active segment that is due is too small to be followed by another."""
        are_many = len(self.files.segments) >= SMALL_SEGMENTS_MAX
        return are_many and segment.size_bytes < SMALL_SEGMENT_BYTES and not segment.must_roll(last_offset)

    # Reading

    def read(self, offset: int, max_bytes: int, *, end_offset: int, min_one_batch: bool = True) -> ReadResult:
        """Whole batches of one segment from `offset` on and below `end_offset`, up to `max_bytes`.

        With `min_one_batch` the first one comes even if it is larger. Where nothing is left in a segment, the next one
        is read. OFFSET_OUT_OF_RANGE outside of the log.
        """
        self.check_readable()
        reader = self.files.reader
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
                reads_to_end=self._is_end(end_offset),
                min_one_batch=min_one_batch,
            )
        except OSError as error:
            raise self._health.error(f"could not read offset {offset}: {error}") from error

    def available_bytes(self, offset: int, *, end_offset: int) -> int:
        """How many bytes there are to read from `offset` on, without reading them; 0 outside of the log."""
        end_offset = min(end_offset, self.log_end_offset)
        if not self.log_start_offset <= offset < end_offset:
            return 0
        self.check_readable()
        reads_to_end = self._is_end(end_offset)
        try:
            return self.files.reader.available_bytes(offset, end_offset=end_offset, reads_to_end=reads_to_end)
        except OSError as error:
            raise self._health.error(f"could not look for offset {offset}: {error}") from error

    def _is_end(self, offset: int) -> bool:
        """Whether the files end there, too. An append that failed half way may have left a batch behind the end."""
        return offset == self.log_end_offset and not self._health.failure

    def check_readable(self) -> None:
        """A failed log can be read as it was, until an attempt to repair it has failed too."""
        if self._health.is_half_repaired:
            raise self._health.error()

    def aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedTxn]:
        """Aborted transactions with data in [fetch_offset, upper_bound), in the order of their markers."""
        found: list[AbortedTxn] = []
        at_once(self.collect_aborted(fetch_offset, upper_bound, found))
        return found

    def collect_aborted(
        self, fetch_offset: int, upper_bound: int, found: list[AbortedTxn], producers: Container[int] | None = None
    ) -> Generator[None, None, None]:
        """Adds them to `found`, or those of `producers` alone. Other work may be done at a yield: then SegmentGoneError
        says that the log has changed, and that what was read of it before must be read again.

        The index of a later segment that is rebuilt after those of the range have gone says nothing of their batches.
        """
        self.check_readable()
        generation, ends = self.generation, self._segments_at(fetch_offset, upper_bound)
        # An index may be away: that of a segment whose swap failed half way, until the log is repaired.
        with self._health.refusing("the transaction index could not be read"):
            for _ in self.files.txn_indexes.collect(fetch_offset, upper_bound, found, producers):
                yield
                if self.generation != generation or self._segments_at(fetch_offset, upper_bound) != ends:
                    raise SegmentGoneError(
                        f"{self.topic_partition} was cut, cleaned or opened again, or its start was deleted"
                    )

    def _segments_at(self, offset: int, end_offset: int) -> tuple[Segment, Segment]:
        """The first and the last segment of a range."""
        segments, last_offset = self.files.segments, max(offset, end_offset - 1)
        return segments[segment_number(segments, offset)], segments[segment_number(segments, last_offset)]

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        return self.leader_epochs.end_offset_for_epoch(epoch, self.log_end_offset)

    def divergence(self, last_epoch: int, end_offset: int) -> EpochEnd | None:
        """Where this log diverges from one that ends at `end_offset` with epoch `last_epoch`; None if it does not."""
        found = self.end_offset_for_epoch(last_epoch)
        if found.epoch < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.topic_partition}: epoch {last_epoch} is unknown")
        return found if found.epoch < last_epoch or found.end_offset < end_offset else None

    # Segments

    def roll(self, now_ms: int) -> Segment:
        """Start a new segment at the end of the log. Nothing happens if the active one is empty.

        Refused to a log that has failed: its files may have a batch more than it knows, which would come twice.
        """
        if self._health.failure:
            raise self._health.error()
        with self._health.refusing("could not roll"):
            return self._roll(now_ms, self.log_end_offset)

    def _roll(self, now_ms: int, base_offset: int) -> Segment:
        files = self.files
        active = files.segments[-1]
        if active.base_offset == base_offset:
            return active
        try:
            segment = files.roll(base_offset, self.config, now_ms)
        except SegmentLeftBehindError as error:
            self._health.fail("a segment could be neither created nor removed", error)
            raise
        self.durability.on_roll(active.base_offset)
        failpoints.hit("log.roll.after")
        return segment

    def truncate_to(self, offset: int, *, now_ms: int) -> int:
        """Remove everything from `offset` on, and the rest of the batch it lies in. Returns the new end.

        Kafka would leave the end at `offset` even within a batch. Then the end would jump back with the next restart.
        """
        if self._health.failure:
            self.repair()
        files = self._open_files()
        with self._health.failing("a truncation failed half way"):
            if offset >= self.log_end_offset:
                # The epoch of a leader that has written nothing is cut off as well: the next leader may not know it.
                files.leader_epochs.truncate_from_end(self.log_end_offset)
            elif offset < files.segments[0].base_offset:
                self._start_over(offset, now_ms)
            else:
                self._begin_cut()
                self._end_at(files.cut(offset, self.config))
                files.forget_from(self.log_end_offset, now_ms)
                self._lower_high_watermark()
        return self.log_end_offset

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Remove everything; the log is empty and goes on at `offset`."""
        with self._health.failing("a truncation failed half way"):
            self._start_over(offset, now_ms)

    def _start_over(self, offset: int, now_ms: int) -> None:
        self._begin_cut()
        self.files.start_over(offset, self.config, now_ms)
        self.log_start_offset = offset
        self._end_at(offset)
        self._lower_high_watermark()

    def _begin_cut(self) -> None:
        failpoints.hit("log.truncate.before")
        self.durability.generation += 1
        self.durability.folder_changes += 1

    def _end_at(self, end_offset: int) -> None:
        self.log_end_offset = end_offset
        self.log_start_offset = min(self.log_start_offset, end_offset)
        if self.durability.on_cut(end_offset):
            self._on_truncated()

    def _lower_high_watermark(self) -> None:
        """Transactions that ended below it hold nothing back; those above wait for it again."""
        state = self.producer_state
        state.on_high_watermark(min(state.high_watermark, self.log_end_offset))

    def delete_records(self, before: int) -> int:
        """Raise the log start offset to `before` and remove segments that lie below, or the first of them if they are
        many: `storage.retention` removes the others. Returns the log start offset."""
        if before > self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} ends at {self.log_end_offset}, records before {before} cannot be deleted",
            )
        files = self.files
        if before > self.log_start_offset:
            self.log_start_offset = before
            try:
                files.leader_epochs.truncate_from_start(before)
            except OSError as error:
                # They say too much then, and do so until the log start moves again.
                logger.warning("%s: leader epochs below %d are kept: %s", self.topic_partition, before, error)
            files.producer_state.on_log_start_offset(before)
        count = min(segment_number(files.segments, self.log_start_offset), SEGMENTS_DELETED_AT_ONCE_MAX)
        if count:
            self.durability.folder_changes += 1
            files.delete_first(count, self.log_end_offset, self.config)
        return self.log_start_offset

    def replace_segments(self, cleaned: CleanedSegment) -> bool:
        """Put a cleaned segment in the place of those it was made from. False, and nothing done, if they are gone.

        An OSError says that nothing has happened but to snapshots.
        """
        if self._health.failure or cleaned.generation != self.generation:
            return False
        files = self.files
        replaced = files.replaced_by(cleaned)
        if not replaced:
            return False
        files.settle_snapshots(replaced)
        self.durability.folder_changes += 1
        with self._health.failing("a swap of segments failed half way"):
            files.swap(replaced, cleaned, self.config)
        return True

    # Flushing and closing

    def prepare_flush(self, *, batches_only: bool = False) -> FlushWork | None:
        """The files to be fsynced so that the recovery point can move to the end of the log. None if it is there.

        With `batches_only`, for an acknowledgement that must survive a power cut, it is the durable offset that moves:
        fewer files, and the same data are safe.
        """
        if not self.is_loaded or self._health.failure:
            return None
        return self.durability.prepare(self.files, self.log_end_offset, batches_only=batches_only)

    def flush(self) -> None:
        """Everything appended so far is on disk when this returns. If not, the log has failed: whoever is refused must
        not go on as if nothing had been written.
        """
        work = self.prepare_flush()
        if work is None:
            return
        try:
            work.run()
        except OSError as error:
            self.finish_flush(work, error)
            if not self._health.failure:
                self._health.fail("what was appended could not be flushed", error)
            raise self._health.error() from error
        self.finish_flush(work)

    def finish_flush(self, work: FlushWork, error: Exception | None = None) -> None:
        """What follows from the result of `work.run`. With FileNotOpened nothing is lost: the next flush does it."""
        if error is None:
            self.durability.finish(work)
        elif isinstance(error, FileNotOpened):
            self.durability.put_off(self.files)
        else:
            self._health.fail_fsync(error)

    def note_new_name(self) -> None:
        """The owner has put or replaced a file in the folder, or beside it: the next flush syncs both folders too."""
        self.durability.folder_changes += 1

    def is_flush_due(self, now_ms: int) -> bool:
        """Whether the oldest append that is not flushed is older than `flush.ms`."""
        return self.durability.is_due(now_ms, self.config.flush_ms)

    def close(self, clean: bool = True) -> bool:
        """Give descriptors back; if `clean`, after everything is written and fsynced. Returns whether that is so.

        Whether it succeeds or not, nothing is appended from then on: another process may use the folder.
        """
        try:
            return not self.is_loaded or self._close_files(clean)
        finally:
            self._health.close()

    def end_appends(self) -> None:
        """Refuse appends from now on, because the log is about to be closed."""
        self._health.close()

    def _close_files(self, clean: bool) -> bool:
        files = self.files
        is_clean = clean and not self._health.failure
        if is_clean:
            with self._health.refusing("could not be closed"):
                self.durability.folder_changes += files.write_final_state(self.log_end_offset)
            self.flush()
            files.txn_indexes.note_all()
            # Where an index could not be written, the flush did without it.
            is_clean = self.recovery_point >= self.log_end_offset
        files.close()
        return is_clean

    # Opening

    @cached_property
    def files(self) -> LogFiles:
        files = self._load(clean=self._clean, recovery_point=self._given_recovery_point)
        is_as_it_was_left = self._clean and self.recovery_point == self._given_recovery_point
        self.durability.folder_changes += not is_as_it_was_left
        return files

    def _load(self, *, clean: bool, recovery_point: int | None) -> LogFiles:
        loaded = load_log(
            replace(self._place, now_ms=self._latest_ms),
            self.config,
            clean=clean,
            log_start_offset=self.log_start_offset,
            recovery_point=recovery_point,
        )
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.durability.on_opened(loaded.recovery_point)
        return loaded.files

    def load(self) -> None:
        """Read what is on disk now rather than at first use."""
        _ = self.files

    def _open_files(self) -> LogFiles:
        try:
            return self.files
        except OSError as error:
            raise self._health.error(f"could not be opened: {error}") from error

    def reconfigure(self, config: LogConfig) -> None:
        """The settings count from the next append on; those of indexes from the next segment on."""
        self.config = config
        if self.is_loaded:
            self.producer_state.producer_expiration_ms = config.producer_id_expiration_ms

    @property
    def is_loaded(self) -> bool:
        return "files" in self.__dict__

    @cached_property
    def topic_id(self) -> uuid.UUID | None:
        return partition_metadata.read_topic_id(self._place.folder)

    @property
    def folder(self) -> Path:
        return self._place.folder

    @property
    def producer_state(self) -> ProducerStateManager:
        return self.files.producer_state

    @property
    def leader_epochs(self) -> LeaderEpochs:
        return self.files.leader_epochs

    @property
    def segments(self) -> Sequence[Segment]:
        return self.files.segments

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.files.segments)

    @property
    def recovery_point(self) -> int:
        return self.durability.recovery_point

    @property
    def durable_offset(self) -> int:
        return self.durability.durable_offset

    @property
    def generation(self) -> int:
        return self.durability.generation

    # After an error

    @property
    def has_failed(self) -> bool:
        return bool(self._health.failure)

    @property
    def failure(self) -> str:
        """Why it has failed, or an empty text."""
        return self._health.failure

    @property
    def can_be_repaired(self) -> bool:
        return self.has_failed and self._health.can_be_repaired

    def repair(self) -> None:
        """Open the log again after an append that failed half way. Until this is tried it can be read as it was.

        The next append does it first; who only reads must ask for it.
        """
        if not self._health.failure:
            return
        if not self._health.can_be_repaired:
            raise self._health.error()
        before = self.files
        try:
            # Nothing may be touched on a disk that is still full.
            self._health.check_space()
            self._health.is_half_repaired = True
            files = self._load(clean=False, recovery_point=self.recovery_point)
            known = before.producer_state
            files.producer_state.take_over(known, files.headers_from(known.map_end_offset))
        except OSError as error:
            raise self._health.error(f"{self._health.failure}. It could not be recovered yet: {error}") from error
        before.close()
        files.producer_state.on_high_watermark(before.producer_state.high_watermark)
        self.__dict__["files"] = files
        self._health.recover()
        self.durability.generation += 1
        self.durability.folder_changes += 1
        # What is found was not acknowledged. It is shown from now on.
        self._flush_if_due()
        logger.warning("%s: recovered, and goes on at offset %d", self.topic_partition, self.log_end_offset)
