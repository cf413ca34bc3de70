"""Time and deferred calls come in as arguments: the broker runs the same on a real loop and on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

JUMP_MS: Final = 60_000
"""A clock that gains more than this between two looks was set."""
JUMP_BELIEVED_AFTER_MS: Final = 3_600_000


def plausible_ms(noted_ms: int, written_ms: int) -> int:
    """When something happened that was noted with a time and written at another: later, if the first is far behind.

    A broker that starts while the clock is behind notes times that are behind until its end, also when it is put right.
    """
    return written_ms if written_ms - noted_ms > JUMP_MS else noted_ms


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch. It can be set, to any time."""

    def monotonic_ms(self) -> int:
        """Milliseconds since any time. It goes on at its pace, whatever the wall clock is set to."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Clock, Protocol):
    """A clock that can also call back later, always on the thread that owns the broker's state."""

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> Timer: ...


class SteadyClock:
    """The time of day when it was made, and from then on at its own pace: what is due in ten seconds stays so when the
    wall clock is set. It is wrong from then on by as much as the wall clock was."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_ms = clock.now_ms() - clock.monotonic_ms()

    def now_ms(self) -> int:
        return self._start_ms + self._clock.monotonic_ms()


class CautiousClock:
    """The time of day, for what deletes by age: one that jumped ahead is believed when it has stayed there for long.

    `on_jump` is told by how much, once for each jump. One that goes back is believed at once: it makes nothing older.
    """

    def __init__(self, clock: Clock, on_jump: Callable[[int], None] = lambda _: None) -> None:
        self._clock = clock
        self._on_jump = on_jump
        self._ahead_ms = clock.now_ms() - clock.monotonic_ms()
        self._jumped_at_ms: int | None = None

    def now_ms(self) -> int:
        monotonic_ms = self._clock.monotonic_ms()
        ahead_ms = self._clock.now_ms() - monotonic_ms
        if ahead_ms - self._ahead_ms <= JUMP_MS:
            self._ahead_ms, self._jumped_at_ms = ahead_ms, None
        elif self._jumped_at_ms is None:
            self._jumped_at_ms = monotonic_ms
            self._on_jump(ahead_ms - self._ahead_ms)
        elif monotonic_ms - self._jumped_at_ms >= JUMP_BELIEVED_AFTER_MS:
            self._ahead_ms, self._jumped_at_ms = ahead_ms, None
        return monotonic_ms + self._ahead_ms
