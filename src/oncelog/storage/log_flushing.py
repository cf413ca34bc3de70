"""How what was appended gets to disk, by a flush or with the end of the broker."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from oncelog.core.errors import KafkaError
from oncelog.storage.flush_work import FileNotOpened, FlushWork
from oncelog.storage.open_log import OpenLog
from oncelog.storage.segment import Segment

logger = logging.getLogger("oncelog.storage")


class LogFlushing(OpenLog):
    _has_waiting_indexes = False
    """Whether the last flush had to do without them."""

    def prepare_flush(self, *, batches_only: bool = False) -> FlushWork | None:
        """The files to be fsynced so that the recovery point can move to the end of the log. None if it is there.

        With `batches_only`, for an acknowledgement that must survive a power cut, it is the durable offset that moves:
        fewer files, and the same data are safe. So it goes where index entries cannot be written: they wait in memory.
        """
        try:
            work = self._prepare(batches_only=batches_only)
            if not batches_only:
                self._has_waiting_indexes = False
        except KafkaError as error:
            if not self._has_waiting_indexes:
                logger.warning("%s. Until that succeeds, the recovery point stays at %d", error, self.recovery_point)
            self._has_waiting_indexes = True
            work = self._prepare(batches_only=True)
        return work

    def put_off_flush(self) -> None:
        """A flush that was prepared could not begin, and nothing is lost: the next one has to do all of it."""
        loaded = self._loaded
        loaded.snapshots.unsynced.update(loaded.snapshots.offsets)
        loaded.leader_epochs.is_unsynced = True
        self._first_unflushed_ms = 0

    def _prepare(self, *, batches_only: bool) -> FlushWork | None:
        if not self.is_loaded or self._failure:
            return None
        reached = self.durable_offset if batches_only else self.recovery_point
        rolled = {} if batches_only else self._rolled
        if reached >= self.log_end_offset and self._folder_changes == self._folder_changes_synced and not rolled:
            return None
        segments = self._loaded.segments[self._reader.segment_number(min([reached, *rolled])) :]
        try:
            files = [segment.log_file.path for segment in segments] if batches_only else self._files_to_flush(segments)
        except OSError as error:
            raise self._storage_error(f"could not write an index: {error}") from error
        self._first_unflushed_ms = None
        folder_changes = self._folder_changes
        return FlushWork(
            self.topic_partition,
            tuple(files),
            None if folder_changes == self._folder_changes_synced else self._place.folder,
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
        loaded.txn_indexes.write_notes(is_growing=not self._is_closing)
        # From here on nothing fails: what is taken off these lists is in the work.
        loaded.snapshots.unsynced.clear()
        if loaded.leader_epochs.is_unsynced:
            # The file was replaced by renaming, so that its name needs an fsync, too.
            files.append(loaded.leader_epochs.path)
            loaded.leader_epochs.is_unsynced = False
            self._folder_changes += 1
        return files

    def finish_flush(self, work: FlushWork) -> None:
        """The work is done: its end is the recovery point, unless the log was cut since."""
        self._folder_changes_synced = max(self._folder_changes_synced, work.folder_changes)
        if work.generation == self._generation:
            self.durable_offset = max(self.durable_offset, work.end_offset)
            if work.is_complete:
                self.recovery_point = max(self.recovery_point, work.end_offset)
                self._rolled = {
                    base: changes for base, changes in self._rolled.items() if changes > work.folder_changes
                }

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
        except FileNotOpened as error:
            self.put_off_flush()
            raise self._storage_error(f"not flushed yet: {error}") from error
        except OSError as error:
            self.fail_flush(error)
            raise self._storage_error(self._failure) from error
        self.finish_flush(work)

    def is_flush_due(self, now_ms: int) -> bool:
        """By `flush.ms`, and when the clock was set back, so that nobody knows for how long it has been due."""
        since_ms = self._first_unflushed_ms
        return since_ms is not None and not 0 <= now_ms - since_ms < self.config.flush_ms

    def close(self, clean: bool = True) -> bool:
        """Give descriptors back; if `clean`, after everything is written and fsynced. Returns whether that is so.

        However it goes, nothing is appended from then on: somebody else may have the folder.
        """
        try:
            return not self.is_loaded or self._close_files(clean)
        finally:
            self._failure, self._can_be_repaired = self._failure or "it is closed", False

    def _close_files(self, clean: bool) -> bool:
        is_clean = clean and not self._failure
        if is_clean:
            try:
                self._write_final_state()
            except OSError as error:
                raise self._storage_error(f"could not be closed: {error}") from error
            self.flush()
            # Where an index could not be written, the flush did without it.
            is_clean = self.recovery_point >= self.log_end_offset
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
        loaded.txn_indexes.write_notes()
        self._is_closing = True
