"""The live screen of `oncelog txn watch`: rates, what is open, what happened last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from oncelog.cli.output import count_of, show_duration, show_time
from oncelog.monitoring import transaction_history as history
from oncelog.monitoring.transaction_activity import COUNTED, TransactionActivity
from oncelog.monitoring.transaction_history import TransactionEvent

if TYPE_CHECKING:
    from rich.console import Group

OPEN_SHOWN: Final = 12
INTERVAL_MS_MIN: Final = 50
_STYLES: Final = {
    history.BEGAN: "cyan",
    history.COMMITTED: "green",
    history.ABORTED: "red",
    history.ABORTING: "red",
    history.TIMED_OUT: "bold red",
}


def bounded(
    batches: Iterable[list[TransactionEvent]], end_ms: int | None, count: int | None, now_ms: Callable[[], int]
) -> Iterator[list[TransactionEvent]]:
    """Up to a time and a number of events."""
    left = count
    for events in batches:
        taken = events if left is None else events[:left]
        yield taken
        if left is not None:
            left -= len(taken)
        if left == 0 or (end_ms is not None and now_ms() >= end_ms):
            return


def event_line(event: TransactionEvent) -> str:
    partitions = ",".join(map(str, event.partitions))
    producer = f"{event.producer_id}:{event.producer_epoch}"
    return "  ".join(filter(None, [show_time(event.time_ms), event.transactional_id, event.what, producer, partitions]))


def screen(activity: TransactionActivity, now_ms: int) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rates = Table("", "per second", "since the start", box=None, pad_edge=False)
    for what in COUNTED:
        rates.add_row(
            Text(what, style=_STYLES.get(what, "")), f"{activity.rate(what, now_ms):.1f}", str(activity.totals[what])
        )
    opened = Table("open", "state", "age", "time-out in", box=None, pad_edge=False)
    oldest = sorted(activity.open.items(), key=lambda item: item[1].start_ms)
    for name, found in oldest[:OPEN_SHOWN]:
        age = max(now_ms - found.start_ms, 0)
        left = found.timeout_ms - age
        opened.add_row(name, found.state, show_duration(age), show_duration(left) if left > 0 else "overdue")
    if len(oldest) > OPEN_SHOWN:
        opened.add_row(f"... and {len(oldest) - OPEN_SHOWN} more", "", "", "")
    events = Table("last events", box=None, pad_edge=False)
    for event in reversed(activity.last):
        events.add_row(Text(event_line(event), style=_STYLES.get(event.what, "")))
    head = Text(f"{count_of(len(activity.open), 'open transaction')}   {show_time(now_ms)}   Ctrl-C ends", style="bold")
    return Group(head, "", rates, "", opened, "", events)


def draw_live(
    activity: TransactionActivity, batches: Iterable[list[TransactionEvent]], now_ms: Callable[[], int]
) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(screen(activity, now_ms()), console=Console(), screen=True, auto_refresh=False) as live:
        for events in batches:
            for event in events:
                activity.add(event, now_ms())
            live.update(screen(activity, now_ms()), refresh=True)
