"""Answers that clients do not take, and what they may cost.

A client that asks for much and reads slowly keeps its answers in memory. One connection is held back by its own limit;
all of them together are bounded here: when more than `max_bytes` lie around, fetches are answered with little, so that
every reader still moves on and many slow ones cannot fill memory.
"""

from __future__ import annotations

from typing import Final

SMALL_ANSWER_BYTES: Final = 65_536


class Unsent:
    __slots__ = ("connection_max_bytes", "held_bytes", "max_bytes")

    def __init__(self, connection_max_bytes: int, max_bytes: int) -> None:
        self.connection_max_bytes = connection_max_bytes
        self.max_bytes = max_bytes
        self.held_bytes = 0
        """Of connections that are over their own limit; the others hold less than that each."""

    def room_bytes(self) -> int:
        """What an answer may add."""
        return max(SMALL_ANSWER_BYTES, self.max_bytes - self.held_bytes)
