"""Bounds on waiting: a deadline for the whole of an operation, and the pauses between its attempts."""

from __future__ import annotations

import asyncio
import random
import time


class Deadline:
    """A moment on the monotonic clock by which an operation ends, one way or the other."""

    __slots__ = ("at_s",)

    def __init__(self, timeout_ms: float) -> None:
        self.at_s = time.monotonic() + timeout_ms / 1000

    @property
    def remaining_ms(self) -> float:
        return max(0.0, (self.at_s - time.monotonic()) * 1000)

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self.at_s


class Backoff:
    """Pauses that double from a first to a longest one, spread by a fifth so that clients do not march in step."""

    __slots__ = ("_first_ms", "_longest_ms", "_next_ms")

    def __init__(self, first_ms: float, longest_ms: float) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._next_ms = first_ms

    def next_ms(self) -> float:
        pause_ms = self._next_ms * random.uniform(0.8, 1.2)
        self._next_ms = min(self._longest_ms, self._next_ms * 2)
        return pause_ms

    def reset(self) -> None:
        self._next_ms = self._first_ms

    async def pause(self, deadline: Deadline) -> None:
        await asyncio.sleep(min(self.next_ms(), deadline.remaining_ms) / 1000)
