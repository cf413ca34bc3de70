"""Whoever tries passwords has to wait longer and longer: by address, since a failed login has no user.

Only the answers to failures are held back. Somebody else at the address who knows a password does not wait.
"""

from __future__ import annotations

from typing import Final

DOUBLINGS_MAX: Final = 5
FORGIVEN_AFTER_MS: Final = 60_000
ADDRESSES_MAX: Final = 10_000


class FailedLogins:
    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, int]] = {}
        """By address, the one that failed last at the end: how often, and when last."""

    def delay_ms(self, address: str, first_ms: int, now_ms: int) -> int:
        """How long to hold back the answer to a login that has just failed."""
        count, last_ms = self._failures.pop(address, (0, now_ms))
        if now_ms - last_ms >= FORGIVEN_AFTER_MS:
            count = 0
        self._failures[address] = (count + 1, now_ms)
        if len(self._failures) > ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        return first_ms << min(count, DOUBLINGS_MAX)
