"""Bounds on waiting: a deadline for the whole of an operation, and the pauses between its attempts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from oncelog.core.errors import ErrorCode, KafkaError

CONCURRENT_FIRST_MS: Final = 2.0
CONCURRENT_LONGEST_MS: Final = 50.0
"""A coordinator that still completes the last transaction is done within a few milliseconds."""


class Deadline:
    """A moment on a steady clock by which an operation ends, with a result or an error."""

    __slots__ = ("_now_s", "at_s", "last_failure")

    def __init__(self, timeout_ms: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self.at_s = now_s() + timeout_ms / 1000
        self.last_failure: KafkaError | None = None
        """What went wrong last, as far as nothing has succeeded since: part of an operation that is cut off cannot say
        it itself."""

    @property
    def remaining_ms(self) -> float:
        return max(0.0, (self.at_s - self._now_s()) * 1000)

    @property
    def expired(self) -> bool:
        return self._now_s() >= self.at_s


class Backoff:
    """Pauses that double from a first to a longest one, spread by a fifth so that clients do not retry all at once.

    After CONCURRENT_TRANSACTIONS they are short ones.
    """

    __slots__ = ("_concurrent_ms", "_first_ms", "_longest_ms", "_next_ms", "_rng")

    def __init__(self, first_ms: float, longest_ms: float, rng: random.Random) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._rng = rng
        self._next_ms = first_ms
        self._concurrent_ms = CONCURRENT_FIRST_MS

    def next_ms(self, failure: KafkaError | None = None) -> float:
        spread = self._rng.uniform(0.8, 1.2)
        if failure is not None and failure.code == ErrorCode.CONCURRENT_TRANSACTIONS:
            pause_ms = self._concurrent_ms
            self._concurrent_ms = min(CONCURRENT_LONGEST_MS, pause_ms * 2)
        else:
            pause_ms = self._next_ms
            self._next_ms = min(self._longest_ms, pause_ms * 2)
        return pause_ms * spread

    def reset(self) -> None:
        self._next_ms = self._first_ms
        self._concurrent_ms = CONCURRENT_FIRST_MS
