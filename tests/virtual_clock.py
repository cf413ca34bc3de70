"""Time that moves only when told to: the whole broker runs on it, and tests of hours take milliseconds."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class VirtualTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualScheduler:
    """A `core.clock.Scheduler`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self.wrong_by_ms = 0
        """What the wall clock was set ahead or back by."""
        self._sequence = 0
        self._timers: list[tuple[int, int, VirtualTimer]] = []

    def now_ms(self) -> int:
        return self._now_ms + self.wrong_by_ms

    def monotonic_ms(self) -> int:
        return self._now_ms

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> VirtualTimer:
        timer = VirtualTimer(callback)
        self._sequence += 1
        heapq.heappush(self._timers, (self._now_ms + max(0, delay_ms), self._sequence, timer))
        return timer

    def advance_ms(self, delta_ms: int) -> None:
        """Move time forward, running every timer that falls due, in order, at its own time."""
        target_ms = self._now_ms + delta_ms
        while self._timers and self._timers[0][0] <= target_ms:
            due_ms, _, timer = heapq.heappop(self._timers)
            self._now_ms = max(self._now_ms, due_ms)
            if timer.callback is not None:
                callback, timer.callback = timer.callback, None
                callback()
        self._now_ms = max(self._now_ms, target_ms)  # a callback may have let more time pass

    def pause_ms(self, delta_ms: int) -> None:
        """Time passes, and nothing runs: the process is stopped, as by SIGSTOP. What fell due runs late."""
        self._now_ms += delta_ms
        self.advance_ms(0)

    def next_due_ms(self) -> int | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None
