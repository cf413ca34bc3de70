"""What makes a log shorter: cutting off its end, deleting from its start, and segments that replace others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.storage.log_rolling import LogRolling
from oncelog.storage.producer_replay import restore_producer_state
from oncelog.storage.retention import count_deletable
from oncelog.storage.segment import Segment
from oncelog.storage.segment_swap import CleanedSegment, swap_in

logger = logging.getLogger("oncelog.storage")


class LogCutting(LogRolling):
    def truncate_to(self, offset: int, *, now_ms: int) -> int:
        """Remove everything from `offset` on, and the rest of the batch it lies in. Returns the new end.

        Kafka would leave the end at `offset` even within a batch. Then the end would jump back with the next restart.
        """
        loaded = self._loaded
        if offset >= self.log_end_offset:
            return self.log_end_offset
        if offset <= loaded.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset, now_ms=now_ms)
            return offset
        failpoints.hit("log.truncate.before")
        self._generation += 1
        number = self._reader.segment_number(offset)
        loaded.txn_indexes.check(loaded.segments[number])
        loaded.txn_indexes.forget(segment.base_offset for segment in loaded.segments[number:])
        self._drop_segments(loaded.segments[number + 1 :])
        end_offset = loaded.segments[-1].truncate_to(offset)
        self._after_truncation(end_offset)
        restore_producer_state(
            loaded.producer_state,
            self.topic_partition,
            loaded.segments,
            loaded.snapshots,
            end_offset=end_offset,
            now_ms=now_ms,
        )
        return end_offset

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Remove everything; the log is empty and goes on at `offset`."""
        loaded = self._loaded
        failpoints.hit("log.truncate.before")
        self._generation += 1
        loaded.txn_indexes.forget([segment.base_offset for segment in loaded.segments])
        self._drop_segments(list(loaded.segments))
        place = self._place
        loaded.segments.append(
            Segment.create(place.folder, offset, files=place.files, config=self.config, now_ms=now_ms)
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
        if count == len(loaded.segments) and not self._try_to_roll(now_ms):
            count -= 1
        if count:
            self._raise_log_start(loaded.segments[count].base_offset)
            self._delete_first_segments(count)
        return count

    def _try_to_roll(self, now_ms: int) -> bool:
        """In vain, as on a full disk, the active segment has to stay. All before it can go, which may be what helps."""
        if self._failure:
            return False
        try:
            self.roll(now_ms)
        except KafkaError as error:
            logger.warning("the active segment is kept although it is due for deletion: %s", error)
            return False
        return True

    def _raise_log_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            try:
                self.leader_epochs.truncate_from_start(offset)
            except OSError as error:
                # They say too much then, and do so until the log start moves again.
                logger.warning("%s: leader epochs below %d are kept: %s", self.topic_partition, offset, error)
            self.producer_state.on_log_start_offset(offset)

    def _delete_first_segments(self, count: int) -> None:
        loaded = self._loaded
        if count:
            self._keep_producers(loaded.segments[count].base_offset)
            self._drop_segments(loaded.segments[:count])
            loaded.snapshots.remove_outside(loaded.segments[0].base_offset, self.log_end_offset)

    def _keep_producers(self, offset: int) -> None:
        """From here on producers are known without the batches below `offset`, also if the snapshot there is lost."""
        loaded = self._loaded
        if loaded.snapshots.is_intact(offset):
            loaded.snapshots.make_durable(offset)
        else:
            loaded.snapshots.write(offset, loaded.producer_state.take_earlier_snapshot(offset), durable=True)

    def replace_segments(self, cleaned: CleanedSegment) -> bool:
        """Put a cleaned segment in the place of those it was made from. False, and nothing done, if they are gone.

        An OSError says that nothing has happened but to snapshots.
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
        segment.is_txn_index_checked = True
        self._settle_snapshots(cleaned.base_offset, loaded.segments[end].base_offset)
        deleted: list[Path] = []
        loaded.txn_indexes.forget(old.base_offset for old in replaced)
        try:
            swap_in(cleaned.files, lambda: deleted.extend(path for old in replaced for path in old.rename_deleted()))
            # Until here the old ones are found, so that a reader after a failed rename meets an error and not a gap.
            loaded.segments[first:end] = [segment]
            self._reader.forget_positions()
            self._folder_changes += 1
            place.delete_later(deleted, self.config.file_delete_delay_ms)
        except OSError as error:
            self._fail("a swap of segments failed half way", error)
            raise self._storage_error(self._failure) from error
        return True

    def _settle_snapshots(self, first: int, end: int) -> None:
        """Before a swap of segments from `first` to `end`: no snapshot of these may know of a transaction.

        The cleaner may have removed its marker along with the data, and it would be open for ever in a state that is
        restored from there. The snapshot at `first` stays, because after retention it can be all that is known of a
        producer. Every transaction that is open in it has ended since, and what was aborted of it before `first` is
        gone, either with its segment or by an earlier swap.
        """
        loaded = self._loaded
        snapshots = loaded.snapshots
        if first == loaded.segments[0].base_offset > 0:
            self._keep_producers(first)
        for offset in [offset for offset in snapshots.offsets if first < offset < end]:
            snapshots.remove(offset)
        snapshots.end_transactions(first)

    def _drop_segments(self, dropped: Sequence[Segment]) -> None:
        """Out of the list first, so that nobody finds them; files are renamed and unlinked later."""
        segments = self._loaded.segments
        self._reader.forget_positions()
        for segment in dropped:
            segments.remove(segment)
            failpoints.hit("log.delete.before_rename")
            self._place.delete_later(segment.rename_deleted(), self.config.file_delete_delay_ms)
            self._folder_changes += 1
