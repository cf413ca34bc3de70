"""Time and deferred calls come in as arguments: the broker runs the same on a real loop and on a virtual clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Clock, Protocol):
    """A clock that can also call back later, always on the thread that owns the broker's state."""

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> Timer: ...


class SteadyClock:
    """Follows another clock and does not go back: what is due in ten seconds stays so when the time of day is set back.

    Once that has happened it is ahead of the other clock by as much.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms = clock.now_ms()
        self._ahead_ms = 0

    def now_ms(self) -> int:
        now_ms = self._clock.now_ms()
        if now_ms < self._last_ms:
            self._ahead_ms += self._last_ms - now_ms
        self._last_ms = now_ms
        return now_ms + self._ahead_ms


class VirtualTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualScheduler:
    """A scheduler whose time moves only when told to: tests of hours take milliseconds."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._sequence = 0
        self._timers: list[tuple[int, int, VirtualTimer]] = []

    def now_ms(self) -> int:
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
        self._now_ms = target_ms

    def next_due_ms(self) -> int | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None
