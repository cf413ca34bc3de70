"""One budget for the memory of all connections: requests that are being received or served, and answers that are being
made or not yet taken.

Each connection tells what it holds: bytes, and an estimate of what a large request or a long answer takes as objects
(`large_requests`, `turns`). While half of the budget is held, fetches are answered with little, so that every
reader still moves on, and large requests and long answers go on one at a time. A frame that would grow beyond the
budget waits for room. If nothing is freed for a while, all are closed whose frames have not grown since; if there are
none, or if an answer exceeds the budget, then whoever holds most is closed. So a client that sends half a request keeps
memory from others for seconds, and one that reads nothing only as long as it holds less than they do.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from oncelog.protocol.framing import RECEIVE_BUFFER_BYTES

if TYPE_CHECKING:
    from oncelog.core.clock import Scheduler

log = logging.getLogger("oncelog.server")

SMALL_ANSWER_BYTES: Final = 65_536
UNSENT_BYTES_MAX: Final = 4_096
"""Of answers that a client has not taken; above it, its requests wait. What is below it is not counted."""
CONNECTION_BYTES: Final = RECEIVE_BUFFER_BYTES + UNSENT_BYTES_MAX
"""What each connection has for itself. It is not counted: the number of connections bounds it."""
CONNECTIONS_MIN: Final = 100
ROOM_WAIT_MS: Final = 2_000
"""How long nothing may be freed while a frame waits for room."""


def connections_max(max_bytes: int) -> int:
    """So many that their own buffers take as much memory as the budget. If that is small, there are still enough for
    an administrator who wants to change it."""
    return max(CONNECTIONS_MIN, max_bytes // CONNECTION_BYTES)


uses: Final = itertools.count()
"""Whenever something comes from a client, that is a use of its connection, with a number of its own."""


class Holder(Protocol):
    def go_on(self) -> None:
        """There is room again."""

    def has_stalled_since(self, use: int) -> bool:
        """Whether a frame has begun, and nothing has come of it since the use with this number."""

    def give_up(self, reason: str) -> None:
        """The connection is closed, and holds nothing any more."""


class MemoryBudget:
    def __init__(self, max_bytes: int, scheduler: Scheduler) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.closed_connections = 0
        self._scheduler = scheduler
        self._held: dict[Holder, int] = {}
        self._waiting: dict[Holder, None] = {}
        self._has_timer = False
        self._freed_since_timer = False
        self._use_at_timer = 0
        self._is_clearing = False
        self.on_freed: Callable[[], None] = lambda: None

    @property
    def is_half_held(self) -> bool:
        return self.held_bytes > self.max_bytes // 2

    @property
    def is_exceeded(self) -> bool:
        return self.held_bytes > self.max_bytes

    def fetch_room_bytes(self) -> int:
        """How much the answer to a fetch may take."""
        return max(SMALL_ANSWER_BYTES, self.max_bytes // 2 - self.held_bytes)

    def hold(self, holder: Holder, held_bytes: int) -> None:
        """Take note of what a connection holds now, in place of what it held before."""
        before_bytes = self._held.get(holder, 0)
        if held_bytes == before_bytes:
            return
        if held_bytes:
            self._held[holder] = held_bytes
        else:
            del self._held[holder]
        self.held_bytes += held_bytes - before_bytes
        if held_bytes < before_bytes:
            self._freed_since_timer = True
            self._let_go_on()
            self.on_freed()

    def wait_for_room(self, holder: Holder) -> None:
        """For a frame that is being received. `go_on` tells when there is room."""
        self._waiting[holder] = None
        self._start_timer()

    def forget(self, holder: Holder) -> None:
        """It waits for nothing any more."""
        self._waiting.pop(holder, None)

    def make_room(self) -> None:
        """Close connections until what is held is within the budget. For what was received already and cannot wait."""
        while self.is_exceeded:
            self._close_largest()

    def _let_go_on(self) -> None:
        while self._waiting and not self.is_exceeded and not self._is_clearing:
            holder = next(iter(self._waiting))
            del self._waiting[holder]
            holder.go_on()

    def _start_timer(self) -> None:
        if not self._has_timer:
            self._has_timer, self._freed_since_timer = True, False
            self._use_at_timer = next(uses)
            self._scheduler.call_later_ms(ROOM_WAIT_MS, self._look_at_waiting)

    def _look_at_waiting(self) -> None:
        if self._waiting and self.is_exceeded and not self._freed_since_timer and not self._close_stalled():
            self._close_largest()
        self._has_timer = False
        if self._waiting:
            self._start_timer()

    def _close_stalled(self) -> bool:
        """Whether there were any. Thousands may hold as much as whoever waits, and would go one at a time."""
        stalled = [
            holder
            for holder in self._held
            if holder not in self._waiting and holder.has_stalled_since(self._use_at_timer)
        ]
        self._is_clearing = True
        for holder in stalled:
            self._close(holder, f"nothing has come of the request of this one for {ROOM_WAIT_MS} ms")
        self._is_clearing = False
        self._let_go_on()
        return bool(stalled)

    def _close_largest(self) -> None:
        largest = max(self._held, key=self._held.__getitem__)
        self._close(largest, f"this one the most, {self._held[largest]}")

    def _close(self, holder: Holder, why: str) -> None:
        self.closed_connections += 1
        holder.give_up(
            f"all connections hold {self.held_bytes} bytes, more than oncelog.connections.max.bytes, and {why}"
        )
        self._waiting.pop(holder, None)
        self.hold(holder, 0)
