"""How much of a log is on disk, and which files the next fsync must cover.

A flush has three steps, because the fsync itself may run on another thread: `prepare`, `FlushWork.run`, `finish`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from oncelog.storage.flush_work import FlushWork
from oncelog.storage.log_files import LogFiles
from oncelog.storage.segment import Segment, segment_number

logger = logging.getLogger("oncelog.storage")

ROLLED_SEGMENTS_MAX: Final = 200


class Durability:
    recovery_point: int
    """Below it, batches and all that follows from them are on disk: recovery starts here."""
    durable_offset: int
    """Below it, batches are on disk. Never less than the recovery point."""

    def __init__(self, recovery_point: int) -> None:
        self.recovery_point = self.durable_offset = recovery_point
        self._prepared_end = recovery_point
        """Where the recovery point gets if the flushes that have begun succeed. Checkpoints may name it already."""
        self.generation = 0
        """Changes whenever the log is cut or opened again, so that what was made from its files before is worthless."""
        self.folder_changes = 0
        """How often names in the folder have changed. Counted up before or after a change, but never a turn later."""
        self._folder_changes_synced = 0
        self._rolled: dict[int, int] = {}
        """Base offsets of segments whose time index has got its last entry, and perhaps no fsync since; and how many
        changes the folder had had after that."""
        self._first_unflushed_ms: int | None = None
        self._has_waiting_indexes = False
        """Whether the last flush had to do without them."""

    def on_append(self, now_ms: int) -> None:
        if self._first_unflushed_ms is None:
            self._first_unflushed_ms = now_ms

    def on_roll(self, base_offset: int) -> None:
        """The segment that starts there is not appended to any more."""
        self.folder_changes += 1
        self._rolled[base_offset] = self.folder_changes

    def on_opened(self, recovery_point: int) -> None:
        self.recovery_point = self.durable_offset = recovery_point

    def on_cut(self, end_offset: int) -> bool:
        """Whether the log was cut below its recovery point, or below what a flush that has begun would make it."""
        self.durable_offset = min(self.durable_offset, end_offset)
        is_below = end_offset < max(self.recovery_point, self._prepared_end)
        self.recovery_point = min(self.recovery_point, end_offset)
        self._prepared_end = self.recovery_point
        return is_below

    def is_due(self, now_ms: int, flush_ms: int) -> bool:
        """Whether the oldest append is older than `flush_ms`, or its age is unknown because the clock was set back.

        Or so many segments wait that to list their files takes a while.
        """
        if len(self._rolled) >= ROLLED_SEGMENTS_MAX:
            return True
        return self._first_unflushed_ms is not None and not 0 <= now_ms - self._first_unflushed_ms < flush_ms

    def prepare(self, files: LogFiles, end_offset: int, *, batches_only: bool) -> FlushWork | None:
        """What moves the recovery point, with `batches_only` the durable offset, to `end_offset`. None if it is there.

        Where index entries cannot be written, batches alone are safe: the entries wait in memory.
        """
        if batches_only:
            return self._prepare(files, end_offset, batches_only=True)
        try:
            work = self._prepare(files, end_offset, batches_only=False)
            self._has_waiting_indexes = False
        except OSError as error:
            if not self._has_waiting_indexes:
                logger.warning(
                    "%s in %s: could not write an index: %s. Until that succeeds, the recovery point stays at %d",
                    files.place.partition,
                    files.place.folder,
                    error,
                    self.recovery_point,
                )
            self._has_waiting_indexes = True
            work = self._prepare(files, end_offset, batches_only=True)
        return work

    def _prepare(self, files: LogFiles, end_offset: int, *, batches_only: bool) -> FlushWork | None:
        reached = self.durable_offset if batches_only else self.recovery_point
        rolled = {} if batches_only else self._rolled
        if reached >= end_offset and self.folder_changes == self._folder_changes_synced and not rolled:
            return None
        segments = files.segments[segment_number(files.segments, min([reached, *rolled])) :]
        paths = [segment.log_file.path for segment in segments] if batches_only else self._write_all(files, segments)
        self._first_unflushed_ms = None
        if not batches_only:
            self._prepared_end = end_offset
        return FlushWork(
            files.place.partition,
            tuple(paths),
            None if self.folder_changes == self._folder_changes_synced else files.place.folder,
            end_offset,
            self.generation,
            is_complete=not batches_only,
            folder_changes=self.folder_changes,
        )

    def _write_all(self, files: LogFiles, segments: Sequence[Segment]) -> list[Path]:
        """The files to be fsynced, in which nothing is missing any more."""
        snapshots, leader_epochs = files.snapshots, files.leader_epochs
        paths: list[Path] = []
        for segment in segments:
            segment.write_index_tails()
            paths += segment.all_paths()
        paths += [snapshots.path(offset) for offset in sorted(snapshots.unsynced)]
        files.txn_indexes.note_growing()
        # From here on nothing fails: what is taken off these lists is in the work.
        snapshots.unsynced.clear()
        if leader_epochs.is_unsynced:
            # The file was replaced by renaming, so that its name needs an fsync, too.
            paths.append(leader_epochs.path)
            leader_epochs.is_unsynced = False
            self.folder_changes += 1
        return paths

    def put_off(self, files: LogFiles) -> None:
        """A flush that was prepared could not begin, and nothing is lost: the next one has to do all of it."""
        files.snapshots.unsynced.update(files.snapshots.offsets)
        files.leader_epochs.is_unsynced = True
        self._first_unflushed_ms = 0

    def finish(self, work: FlushWork) -> None:
        """The work is done: its end is the recovery point, unless the log was cut since."""
        self._folder_changes_synced = max(self._folder_changes_synced, work.folder_changes)
        if work.generation == self.generation:
            self.durable_offset = max(self.durable_offset, work.end_offset)
            if work.is_complete:
                self.recovery_point = max(self.recovery_point, work.end_offset)
                self._rolled = {
                    base: changes for base, changes in self._rolled.items() if changes > work.folder_changes
                }
