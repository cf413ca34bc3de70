"""One request at a time to one peer, without a socket and a clock.

The owner of an exchange sends a request when `is_due` says so and calls `sent`, which returns a number. The owner
passes this number to `accept` with the response. `accept` returns False for the response to a request that was given
up.
"""

from __future__ import annotations


class Exchange:
    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._due_ms: int | None = None
        """None means now."""
        self._number = 0
        self._sent_ms: int | None = None
        """None if there is no current request."""

    def is_due(self, now_ms: int) -> bool:
        return self._sent_ms is None and (self._due_ms is None or now_ms >= self._due_ms)

    def has_timed_out(self, now_ms: int) -> bool:
        return self._sent_ms is not None and now_ms - self._sent_ms >= self._timeout_ms

    @property
    def wake_ms(self) -> int | None:
        """When the next request is due or the current one times out. None means now."""
        return self._due_ms if self._sent_ms is None else self._sent_ms + self._timeout_ms

    def sent(self, now_ms: int) -> int:
        self._number += 1
        self._sent_ms = now_ms
        return self._number

    def accept(self, number: int) -> bool:
        """Whether this is the response to, or the failure of, the current request. The next one is due now."""
        if self._sent_ms is None or number != self._number:
            return False
        self._sent_ms = self._due_ms = None
        return True

    def delay(self, now_ms: int, delay_ms: int) -> None:
        self._due_ms = now_ms + delay_ms

    def hurry(self) -> None:
        """The next request is due now."""
        self._due_ms = None

    def give_up(self) -> None:
        self._sent_ms = self._due_ms = None
