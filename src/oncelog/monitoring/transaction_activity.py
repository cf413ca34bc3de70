"""What transactions do at the moment: rates, totals, what is open, the last events. Kept up to date by events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from oncelog.client.admin import TransactionDescription
from oncelog.core.dataclass import dataclass
from oncelog.monitoring.transaction_history import ABORTED, BEGAN, COMMITTED, TIMED_OUT, TransactionEvent
from oncelog.monitoring.transactions import OPEN_STATES

RATE_WINDOW_MS: Final = 10_000
EVENTS_KEPT: Final = 12
COUNTED: Final = (BEGAN, COMMITTED, ABORTED, TIMED_OUT)


@dataclass(frozen=True, slots=True)
class OpenNow:
    state: str
    start_ms: int
    timeout_ms: int


class TransactionActivity:
    def __init__(self, described: Iterable[TransactionDescription] = ()) -> None:
        """`described` is what is open when following begins."""
        self._counted: deque[tuple[int, str]] = deque()
        self.totals = dict.fromkeys(COUNTED, 0)
        self.last: deque[TransactionEvent] = deque(maxlen=EVENTS_KEPT)
        self.open = {
            one.transactional_id: OpenNow(one.state, one.start_time_ms, one.timeout_ms)
            for one in described
            if one.state in OPEN_STATES
        }

    def add(self, event: TransactionEvent, now_ms: int) -> None:
        self.last.append(event)
        if event.what in self.totals:
            self.totals[event.what] += 1
            self._counted.append((now_ms, event.what))
        if event.state in OPEN_STATES:
            self.open[event.transactional_id] = OpenNow(event.state, event.start_ms, event.timeout_ms)
        else:
            self.open.pop(event.transactional_id, None)

    def rate(self, what: str, now_ms: int) -> float:
        """Events per second, over the last ten seconds."""
        while self._counted and self._counted[0][0] < now_ms - RATE_WINDOW_MS:
            self._counted.popleft()
        return sum(name == what for _, name in self._counted) * 1000 / RATE_WINDOW_MS
