"""The log of one partition: a folder of segments, of which the last is appended to.

Theory of operation
-------------------
`append` is the only way in, and its order is fixed: see there. What it writes is in the page cache when it returns;
`recovery_point` says up to where it is on disk, and moves with `flush`. Indexes, snapshots and leader epochs are
written along without fsync, because all of them can be rebuilt from the batches above the recovery point; a flush
fsyncs them first, so that below it they can be believed.

What else can be done with a log stands in the classes that this one is made of:

    OpenLog      its folder, opened at first use, and what follows from an error
    LogReading   batches, timestamps, aborted transactions
    LogRolling   new segments
    LogCutting   truncation, retention, deleted records, segments that the cleaner replaces
    LogFlushing  fsync and the end
"""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NO_TIMESTAMP
from oncelog.storage import partition_metadata
from oncelog.storage.append_checks import check_batches
from oncelog.storage.batch_placement import PlacedBatches, accept_batches, place_batches
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_cutting import LogCutting
from oncelog.storage.log_flushing import LogFlushing
from oncelog.storage.log_reader import ReadResult
from oncelog.storage.log_reading import LogReading
from oncelog.storage.producer_replay import complete_txn
from oncelog.storage.producer_state import CompletedTxn, DuplicateBatch, Origin, PendingAppend, VerificationGuard
from oncelog.storage.recovery import LogPlace
from oncelog.storage.segment import Segment
from oncelog.storage.txn_index import AbortedTxn, CorruptTxnIndexError

logger = logging.getLogger("oncelog.storage")


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


def _nothing() -> None:
    return None


class Log(LogReading, LogCutting, LogFlushing):
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
        self._latest_ms = now_ms
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
                # The original may have failed half way, or be from before a crash, and is acknowledged only now.
                self._flush_if_due()
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
                    complete_txn(state, ended, partial(self._add_aborted, segment))
                    completed.append(ended)
                    # The file comes with its first entry, and its name must get to disk as well.
                    self._folder_changes += ended.aborted and len(segment.txn_index) == 1
            # 9. End offset.
            self.log_end_offset = last_offset + 1
            if self._first_unflushed_ms is None:
                self._first_unflushed_ms = now_ms
        except Exception as error:
            if not self._failure:
                self._fail("an append failed half way", error)
            if isinstance(error, OSError):
                raise self._storage_error(self._failure) from error
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

    def _add_aborted(self, segment: Segment, aborted: AbortedTxn) -> None:
        """The marker is in the segment already, so an index that is rebuilt has the entry."""
        try:
            segment.add_aborted(aborted)
        except CorruptTxnIndexError as error:
            logger.warning("%s: %s", self.topic_partition, error)
            self._loaded.txn_indexes.rebuild(segment)

    @property
    def can_be_repaired(self) -> bool:
        return self.has_failed and self._can_be_repaired

    def repair(self) -> None:
        """What the next append would do first, for those who only read."""
        if self._failure:
            self._repair()

    def _flush_if_due(self) -> None:
        """By `flush.messages`."""
        if self.log_end_offset - self.recovery_point >= self.config.flush_messages:
            self.flush()

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
