"""Deadlines by key, in a heap that is corrected lazily.

Moving a deadline into the future, which every heartbeat does, only changes a dictionary. The heap keeps the old,
earlier entry; when that comes up it is put back at the real deadline. Each key has one entry in the heap that counts
(the one in `_queued`); others left over from deadlines moved forward in time are dropped when they come up.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple


class TimerKind(IntEnum):
    SESSION = 0
    """A member has been silent for too long."""
    JOIN = 1
    """PreparingRebalance lasts too long, or the initial delay is over."""
    SYNC = 2
    """Members have not fetched their assignment."""
    CLEAN_UP = 3
    """Time to look for offsets that nobody needs any more."""


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class TimerQueue:
    def __init__(self) -> None:
        self._deadlines_ms: dict[TimerKey, int] = {}
        self._queued: dict[TimerKey, int] = {}
        self._heap: list[tuple[int, TimerKey]] = []

    def schedule(self, key: TimerKey, deadline_ms: int) -> None:
        """Set the one deadline of `key`, replacing what was set before."""
        self._deadlines_ms[key] = deadline_ms
        queued_ms = self._queued.get(key)
        if queued_ms is None or deadline_ms < queued_ms:
            self._push(key, deadline_ms)

    def cancel(self, key: TimerKey) -> None:
        self._deadlines_ms.pop(key, None)

    def next_deadline_ms(self) -> int | None:
        self._settle()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> TimerKey | None:
        """The earliest key whose deadline has come; its timer is over."""
        self._settle()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _, key = heapq.heappop(self._heap)
        del self._queued[key], self._deadlines_ms[key]
        return key

    def _push(self, key: TimerKey, deadline_ms: int) -> None:
        self._queued[key] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, key))

    def _settle(self) -> None:
        """Bring an entry to the top whose time is the real deadline of its key."""
        while self._heap:
            entry_ms, key = self._heap[0]
            deadline_ms = self._deadlines_ms.get(key)
            if self._queued.get(key) == entry_ms and deadline_ms == entry_ms:
                return
            heapq.heappop(self._heap)
            if self._queued.get(key) != entry_ms:
                continue
            del self._queued[key]
            if deadline_ms is not None:
                self._push(key, deadline_ms)
