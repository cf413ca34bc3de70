"""How a log gets its next segment."""

from __future__ import annotations

from oncelog.core import failpoints
from oncelog.storage.open_log import OpenLog
from oncelog.storage.segment import SEGMENT_SUFFIXES, Segment, file_name


class LogRolling(OpenLog):
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
        loaded.txn_indexes.write_notes()
        failpoints.hit("log.roll.before_create")
        loaded.segments.append(self._create_segment(base_offset, now_ms))
        segment = loaded.segments[-1]
        self._folder_changes += 1
        self._rolled[active.base_offset] = self._folder_changes
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
