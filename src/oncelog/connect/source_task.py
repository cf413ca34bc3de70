"""Copies a source into topics, until it is told to stop.

1. Take over the transactional id: a predecessor is fenced, what it left open is settled. Read the stored position.
2. Ask the source whether that position still means something. Without one, take a snapshot, all of it in one
   transaction or in several.
3. Read changes behind the position. Each goes into the open transaction at once, so that memory stays bounded.
4. Behind a source transaction, when there are enough records or they have waited long enough: commit records and
   position, then confirm. A source transaction is never split.
5. When nothing is for us, move the position on from time to time, so that the source can forget its log, and the group
   does not expire.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

from oncelog.connect.collector import paused_collector
from oncelog.connect.errors import Refused
from oncelog.connect.progress import Progress
from oncelog.connect.settings import SourceSettings
from oncelog.connect.source import Idle, Resume, Source, SourceCommit, SourceRecord, Stored
from oncelog.core.failpoints import hit
from oncelog.core.invariant import invariant

if TYPE_CHECKING:
    from oncelog.connect.source_log import SourceLog

READ_S: Final = 0.2
IDLE_COMMIT_S: Final = 10.0
REPEAT_COMMIT_S: Final = 3600.0
"""Groups whose offsets are not committed for a week expire."""


class SourceTask:
    def __init__(self, settings: SourceSettings, source: Source, log: SourceLog, progress: Progress) -> None:
        self.settings = settings
        self.progress = progress
        self._source = source
        self._log = log
        self._stored: Stored
        self._position = 0
        """The end of the last source transaction whose records are in the open transaction, or committed."""
        self._is_inside = False
        """Whether a source transaction has begun and not ended."""
        self._first_s = 0.0
        self._committed_s = 0.0
        self._reached = 0
        """All up to here is committed in the log, or not for us."""
        self._goal = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to do: source and log belong to whoever made them."""

    def run(self, stopping: Callable[[], bool]) -> None:
        self.start(stopping)
        while not stopping():  # also when it was asked to end during the snapshot
            self.step()
            self.progress.is_current = self._reached >= self._goal

    def start(self, stopping: Callable[[], bool] = lambda: False) -> None:
        hit("source.before_take_over")
        self._log.take_over()
        hit("source.after_take_over")
        stored = self._log.read()
        hit("source.after_read")
        resume = self._resume(stored)
        if resume.snapshot is not None:
            stored = self._snapshot(Stored(0, resume.snapshot), stopping)
        if stored is None:
            return
        self._stored = stored
        self._position = stored.position
        self._committed_s = time.monotonic()
        self._goal = self._source.current_position()
        self._source.stream(stored.position)

    def _resume(self, stored: Stored | None) -> Resume:
        try:
            return self._source.resume(stored)
        except Refused:
            # It may not fit because a newer instance has taken over since it was read: then that is the reason to tell.
            self._log.take_over()
            raise

    def _snapshot(self, begun: Stored, stopping: Callable[[], bool]) -> Stored | None:
        """None if it was asked to end: the next start begins with a new one."""
        self._log.commit(begun)
        hit("source.snapshot.noted")
        self.progress.snapshot = self._source.snapshot_progress
        try:
            for record in self._source.snapshot():
                self._log.send(record)
                if self._log.records == self.settings.snapshot_rows:
                    self._commit(begun)
                    hit("source.snapshot.part")
                if stopping():
                    return None
        finally:
            self.progress.snapshot = None
        done = Stored(self._source.snapshot_position, begun.note._replace(is_snapshot=False))
        hit("source.snapshot.read")
        self._commit(done)
        hit("source.snapshot.committed")
        return done

    def step(self) -> None:
        with paused_collector():
            self._copy()
        self._commit_if_due(is_last=True)

    def _copy(self) -> None:
        for event in self._source.read(READ_S):
            if isinstance(event, SourceRecord):
                if not self._log.records:
                    self._first_s = time.monotonic()
                self._is_inside = True
                self._log.send(event)
            elif isinstance(event, SourceCommit):
                invariant(event.position > self._position, "commits of a source come in the order of their positions")
                self._position, self._is_inside = event.position, False
                self._commit_if_due(is_last=False)
            else:
                self._on_idle(event)

    def _commit_if_due(self, *, is_last: bool) -> None:
        if self._is_inside or not self._log.records:
            return
        age_ms = (time.monotonic() - self._first_s) * 1000
        if self._log.records >= self.settings.batch_rows or (is_last and age_ms >= self.settings.batch_ms):
            self._advance(self._position)

    def _on_idle(self, event: Idle) -> None:
        """Only with nothing open: all that was sent before this is committed in the log."""
        if self._is_inside or self._log.records or event.position < self._position:
            return
        self._reached = event.position
        age_s = time.monotonic() - self._committed_s
        is_new = event.position > self._stored.position
        if (is_new and (event.is_urgent or age_s > IDLE_COMMIT_S)) or age_s > REPEAT_COMMIT_S:
            self._advance(event.position)

    def _advance(self, position: int) -> None:
        self._commit(self._stored._replace(position=position))
        self._position = position
        self._source.confirm(position)
        hit("source.after_confirm")

    def _commit(self, stored: Stored) -> None:
        records = self._log.records
        self._log.commit(stored)
        self._stored = stored
        self._reached = max(self._reached, stored.position)
        self._committed_s = time.monotonic()
        lag = max(0, self._source.seen_position - stored.position)
        self.progress.committed(records, self._source.position_text(stored.position), lag)
