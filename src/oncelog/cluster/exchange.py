"""One request at a time with one peer, without a socket and a clock.

Whoever owns an exchange asks `is_due`, sends, and calls `sent` for a number that comes back with the answer. An answer
whose number `accept` does not take came too late: the request was given up meanwhile.
"""

from __future__ import annotations


class Exchange:
    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._due_ms: int | None = None
        """None: at once."""
        self._number = 0
        self._sent_ms: int | None = None
        """None: nothing is out."""

    def is_due(self, now_ms: int) -> bool:
        return self._sent_ms is None and (self._due_ms is None or now_ms >= self._due_ms)

    def has_timed_out(self, now_ms: int) -> bool:
        return self._sent_ms is not None and now_ms - self._sent_ms >= self._timeout_ms

    @property
    def wake_ms(self) -> int | None:
        """When something is to be done if no answer comes; None: at once."""
        return self._due_ms if self._sent_ms is None else self._sent_ms + self._timeout_ms

    def sent(self, now_ms: int) -> int:
        self._number += 1
        self._sent_ms = now_ms
        return self._number

    def accept(self, number: int) -> bool:
        """Whether this is the answer, or the failure, of what is out. The next request is due at once."""
        if self._sent_ms is None or number != self._number:
            return False
        self._sent_ms = self._due_ms = None
        return True

    def delay(self, now_ms: int, delay_ms: int) -> None:
        self._due_ms = now_ms + delay_ms

    def hurry(self) -> None:
        """Whatever was to be sent later is due now."""
        self._due_ms = None

    def give_up(self) -> None:
        self._sent_ms = self._due_ms = None
