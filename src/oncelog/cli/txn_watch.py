"""The live screen of `oncelog txn watch`: rates, what is open, what happened last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from oncelog.cli import txn_log
from oncelog.cli.output import show_duration, show_time
from oncelog.cli.txn_log import TxnEvent

if TYPE_CHECKING:
    from rich.console import Group

RATE_WINDOW_MS: Final = 10_000
EVENTS_SHOWN: Final = 12
OPEN_SHOWN: Final = 12
_COUNTED: Final = (txn_log.BEGAN, txn_log.COMMITTED, txn_log.ABORTED, txn_log.TIMED_OUT)
_STYLES: Final = {
    txn_log.BEGAN: "cyan",
    txn_log.COMMITTED: "green",
    txn_log.ABORTED: "red",
    txn_log.ABORTING: "red",
    txn_log.TIMED_OUT: "bold red",
}


def bounded(
    batches: Iterable[list[TxnEvent]], end_ms: int | None, count: int | None, now_ms: Callable[[], int]
) -> Iterator[list[TxnEvent]]:
    """Up to a time and a number of events."""
    left = count
    for events in batches:
        taken = events if left is None else events[:left]
        yield taken
        if left is not None:
            left -= len(taken)
        if left == 0 or (end_ms is not None and now_ms() >= end_ms):
            return


def event_line(event: TxnEvent) -> str:
    partitions = ",".join(map(str, event.partitions))
    producer = f"{event.producer_id}:{event.producer_epoch}"
    return "  ".join(filter(None, [show_time(event.time_ms), event.transactional_id, event.what, producer, partitions]))


class WatchState:
    """What the screen shows, brought up to date by events."""

    def __init__(self, opened: Iterable[dict[str, Any]]) -> None:
        self._counted: deque[tuple[int, str]] = deque()
        self.totals = dict.fromkeys(_COUNTED, 0)
        self.last: deque[TxnEvent] = deque(maxlen=EVENTS_SHOWN)
        self.open: dict[str, tuple[str, int, int]] = {}
        """State, start and time-out by id."""
        for row in opened:
            self.open[row["transactional_id"]] = (row["state"], row["start_ms"] or 0, row["timeout_ms"])

    def add(self, event: TxnEvent, now_ms: int) -> None:
        self.last.append(event)
        if event.what in self.totals:
            self.totals[event.what] += 1
            self._counted.append((now_ms, event.what))
        if event.state in ("Ongoing", "PrepareCommit", "PrepareAbort"):
            self.open[event.transactional_id] = (event.state, event.start_ms, event.timeout_ms)
        else:
            self.open.pop(event.transactional_id, None)

    def rate(self, what: str, now_ms: int) -> float:
        """Per second, over the last ten."""
        while self._counted and self._counted[0][0] < now_ms - RATE_WINDOW_MS:
            self._counted.popleft()
        return sum(name == what for _, name in self._counted) * 1000 / RATE_WINDOW_MS


def screen(state: WatchState, now_ms: int) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rates = Table("", "per second", "since the start", box=None, pad_edge=False)
    for what in _COUNTED:
        rates.add_row(
            Text(what, style=_STYLES.get(what, "")), f"{state.rate(what, now_ms):.1f}", str(state.totals[what])
        )
    opened = Table("open", "state", "age", "time-out in", box=None, pad_edge=False)
    oldest = sorted(state.open.items(), key=lambda item: item[1][1])
    for name, (phase, start_ms, timeout_ms) in oldest[:OPEN_SHOWN]:
        age = max(now_ms - start_ms, 0)
        left = timeout_ms - age
        opened.add_row(name, phase, show_duration(age), show_duration(left) if left > 0 else "overdue")
    if len(oldest) > OPEN_SHOWN:
        opened.add_row(f"... and {len(oldest) - OPEN_SHOWN} more", "", "", "")
    events = Table("last events", box=None, pad_edge=False)
    for event in reversed(state.last):
        events.add_row(Text(event_line(event), style=_STYLES.get(event.what, "")))
    head = Text(f"{len(state.open)} open transactions   {show_time(now_ms)}   Ctrl-C ends", style="bold")
    return Group(head, "", rates, "", opened, "", events)


def draw_live(state: WatchState, batches: Iterable[list[TxnEvent]], now_ms: Callable[[], int]) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(screen(state, now_ms()), console=Console(), screen=True, auto_refresh=False) as live:
        for events in batches:
            for event in events:
                state.add(event, now_ms())
            live.update(screen(state, now_ms()), refresh=True)
