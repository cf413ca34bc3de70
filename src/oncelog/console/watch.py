"""One poller for all tabs: the last snapshot of a cluster, how old it is, and why there is no newer one.

A thread polls while somebody looks, and rests otherwise. A poll begins an interval after the last one has begun, and
at least three times as long after its end as it took, so that a large cluster is not asked without a break; after one
that failed, it is at most two seconds. A failed poll leaves the last snapshot where it is: pages show it with its age.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from oncelog.core.errors import KafkaError
from oncelog.monitoring.snapshot import ClusterSnapshot, Poller

logger = logging.getLogger(__name__)

INTEREST_MS: Final = 30_000
"""How long polling goes on after somebody has looked last."""
REST_FACTOR: Final = 3
FAILED_REST_S: Final = 2.0
"""After a poll that failed, which may have waited for long: a cluster that is back is to be seen as such."""
FIRST_POLL_S: Final = 0.5
"""How long a page waits for a first snapshot; then it says that there is none yet."""
LAGS_KEPT: Final = 60
STALE_AFTER_MS: Final = 5_000


def wall_ms() -> int:
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class LagSample:
    """How far groups were behind at one moment, and how many offsets there were in all user topics."""

    taken_ms: int
    lags: dict[str, int]
    end_offsets: int | None
    """None until all of them are known."""
    committed: dict[str, int] = field(default_factory=dict)
    """The committed offsets of each group, all partitions together."""


@dataclass(frozen=True, slots=True)
class WatchState:
    """What is known at one moment."""

    number: int
    """Grows with every poll, successful or not."""
    snapshot: ClusterSnapshot | None
    failed_since_ms: int | None
    """None while polls succeed."""
    error: str
    earlier: tuple[LagSample, ...]
    """Oldest first, the one of this snapshot last."""
    poll_ms: int
    """How long the last poll took."""

    def age_ms(self, now_ms: int) -> int | None:
        return None if self.snapshot is None else max(now_ms - self.snapshot.taken_ms, 0)

    def is_stale(self, now_ms: int) -> bool:
        age = self.age_ms(now_ms)
        return (
            age is None or self.failed_since_ms is not None or age > STALE_AFTER_MS + (REST_FACTOR + 1) * self.poll_ms
        )


class ClusterWatch:
    """Start it, read `state`, stop it. `listeners` are called from the polling thread, and must not block."""

    def __init__(self, poller: Poller, interval_ms: int, now_ms: Callable[[], int] = wall_ms) -> None:
        self._poller = poller
        self._interval_s = interval_ms / 1000
        self._now_ms = now_ms
        self._state = WatchState(0, None, None, "", (), 0)
        self._samples: deque[LagSample] = deque(maxlen=LAGS_KEPT)
        self._looked_s = float("-inf")
        self._changed = threading.Condition()
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oncelog-console-poller", daemon=True)
        self.listeners: set[Callable[[], None]] = set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for a poll under way: it may take as long as a request."""
        self._stopping.set()
        self._wanted.set()
        self._notify()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def state(self) -> WatchState:
        return self._state

    def look(self) -> WatchState:
        """The state, kept fresh from now on. If there is none, or a very old one, this waits for the next poll."""
        was_resting = time.monotonic() - self._looked_s > INTEREST_MS / 1000
        before = self._state
        self.keep_fresh()
        if before.snapshot is None or was_resting:
            with self._changed:
                self._changed.wait_for(lambda: self._state.number > before.number or self.is_stopping, FIRST_POLL_S)
        return self._state

    def keep_fresh(self) -> None:
        self._looked_s = time.monotonic()
        self._wanted.set()

    def _run(self) -> None:
        while not self.is_stopping:
            self._wanted.wait()
            if self.is_stopping:
                return
            if time.monotonic() - self._looked_s > INTEREST_MS / 1000:
                self._wanted.clear()
                continue
            began_s = time.monotonic()
            self._poll()
            took_s = time.monotonic() - began_s
            rest_s = REST_FACTOR * took_s
            if self._state.failed_since_ms is not None:
                rest_s = min(rest_s, FAILED_REST_S)
            self._stopping.wait(max(self._interval_s - took_s, rest_s))

    def _poll(self) -> None:
        before, began_s = self._state, time.monotonic()
        try:
            snapshot = self._poller.poll()
        except KafkaError as error:
            state = self._failed(error.message or error.code.name)
        except Exception as error:  # a fault of one poll is shown on pages; it must not end all polls
            if self.is_stopping:
                return
            logger.exception("a poll failed")
            state = self._failed(f"the console failed: {error!r}")
        else:
            self._samples.append(sample_of(snapshot))
            took_ms = int((time.monotonic() - began_s) * 1000)
            state = WatchState(before.number + 1, snapshot, None, "", tuple(self._samples), took_ms)
        self._state = state
        self._notify()

    def _failed(self, text: str) -> WatchState:
        before = self._state
        since_ms = before.failed_since_ms if before.failed_since_ms is not None else self._now_ms()
        return WatchState(before.number + 1, before.snapshot, since_ms, text, before.earlier, before.poll_ms)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
        for listener in list(self.listeners):
            listener()


def sample_of(snapshot: ClusterSnapshot) -> LagSample:
    return LagSample(
        snapshot.taken_ms,
        {one.listing.group_id: one.group.lag for one in snapshot.groups if one.group is not None},
        _end_offsets(snapshot),
        {
            one.listing.group_id: sum(place.committed or 0 for place in one.group.partitions)
            for one in snapshot.groups
            if one.group is not None
        },
    )


def _end_offsets(snapshot: ClusterSnapshot) -> int | None:
    total = 0
    for topic in snapshot.topics.values():
        if not topic.info.is_internal:
            for partition in topic.partitions:
                if partition.offsets is not None:
                    total += partition.offsets.end
                elif partition.info.leader >= 0:
                    return None
    return total


def status_row(state: WatchState, servers: str, now_ms: int) -> dict[str, Any]:
    snapshot = state.snapshot
    return {
        "bootstrap_servers": servers,
        "cluster_id": snapshot.cluster.cluster_id if snapshot is not None else None,
        "number": state.number,
        "taken_ms": snapshot.taken_ms if snapshot is not None else None,
        "age_ms": state.age_ms(now_ms),
        "stale": state.is_stale(now_ms),
        "failed_since_ms": state.failed_since_ms,
        "error": state.error or None,
    }
