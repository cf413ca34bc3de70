"""Transactional ids: all of them, one with its history, and transactions that hold readers back or hang."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from oncelog.console.lanes import holder_row
from oncelog.console.page import Console, NotThere, Page, Query, paged
from oncelog.monitoring.transaction_history import TransactionEvent, initialisations, read_history
from oncelog.monitoring.transactions import STATES, describe_known, description_row

HISTORY_OFFSETS_MAX: Final = 50_000
EVENTS_MAX: Final = 200
SHARED_ID_STARTS: Final = 3
"""So many starts within a minute: two producers fence each other."""
STRIP_WIDTH: Final = 1000.0


def transaction_list(console: Console, query: Query) -> Page:
    snapshot = console.snapshot()
    wanted, state = query.text("q"), query.choice("state", ("", *STATES))
    rows = [
        one
        for one in snapshot.transactions
        if wanted in one.transactional_id and (not state or one.listing.state == state)
    ]
    rows.sort(key=lambda one: (not one.is_open, -(one.age_ms(snapshot.taken_ms) or 0), one.transactional_id))
    shown, place = paged(rows, query)
    data = {
        "rows": [one.as_row(snapshot.taken_ms) for one in shown],
        "place": place,
        "all": len(snapshot.transactions),
        "q": wanted,
        "state": state,
        "states": list(STATES),
    }
    return Page("transactions.html", "Transactional ids", data)


def transaction(console: Console, query: Query, transactional_id: str) -> Page:
    found = describe_known(console.admin, [transactional_id]).get(transactional_id)
    events = console.recent.get(
        ("history", transactional_id),
        lambda: read_history(console.admin, transactional_id, offsets_max=HISTORY_OFFSETS_MAX),
    )
    if found is None and not events:
        raise NotThere(
            f"No coordinator knows the transactional id {transactional_id!r}.",
            "__transaction_state has nothing about it either.",
        )
    now_ms = console.now_ms()
    starts = initialisations(events, now_ms - 60_000)
    shown = events[-EVENTS_MAX:]
    data = {
        "transactional_id": transactional_id,
        "now": description_row(found, now_ms) if found is not None else None,
        "topics": sorted({partition.topic for partition in found.partitions}) if found is not None else [],
        "starts_last_minute": starts,
        "shared": starts >= SHARED_ID_STARTS,
        "events": [event.as_row() for event in shown],
        "events_left_out": len(events) - len(shown),
        "strip": state_strip(shown, now_ms),
        "can_fence": found is not None and found.state == "Ongoing",
        "command": console.command("txn", "fence", transactional_id),
        "history_command": console.command("txn", "history", transactional_id),
    }
    return Page("transaction.html", f"Transactional id {transactional_id}", data)


def state_strip(events: Sequence[TransactionEvent], now_ms: int) -> dict[str, Any] | None:
    """States over time as segments, and epochs as steps, in units of `STRIP_WIDTH`; None without a history."""
    if not events:
        return None
    low, high = events[0].time_ms, max(events[-1].time_ms + 1, now_ms)

    def x(time_ms: int) -> float:
        return round((time_ms - low) / (high - low) * STRIP_WIDTH, 2)

    ends = [event.time_ms for event in events[1:]] + [high]
    epochs = [event.producer_epoch for event in events if event.producer_epoch >= 0]
    top = max(epochs, default=0)
    bottom = min(epochs, default=0)
    return {
        "low_ms": low,
        "high_ms": high,
        "segments": [
            {
                "x": x(event.time_ms),
                "width": max(round(x(end) - x(event.time_ms), 2), 1.0),
                "state": event.state or "forgotten",
                "what": event.what,
            }
            for event, end in zip(events, ends, strict=True)
        ],
        "epoch_low": bottom,
        "epoch_high": top,
        "steps": [
            {"x": x(event.time_ms), "to": x(end), "y": _step_y(event.producer_epoch, bottom, top)}
            for event, end in zip(events, ends, strict=True)
            if event.producer_epoch >= 0
        ],
    }


def _step_y(epoch: int, bottom: int, top: int) -> float:
    """From 40 (the lowest epoch) up to 4."""
    return 22.0 if top == bottom else round(40 - 36 * (epoch - bottom) / (top - bottom), 2)


def hanging(console: Console, query: Query) -> Page:
    snapshot = console.snapshot()
    after_ms = console.settings.hanging_after_ms
    surely = {id(one) for one in snapshot.hanging(after_ms)}
    rows = [
        {
            **holder_row(one, snapshot.taken_ms),
            "sure": id(one) in surely,
            "command": console.command(*one.remedy) if one.remedy else None,
            "waiting_groups": snapshot.groups_waiting_at(one.partition),
        }
        for held in snapshot.held_back
        for one in (*held.blocking, *held.open_after)
    ]
    data = {
        "hanging": [row for row in rows if row["hanging"]],
        "open": [row for row in rows if not row["hanging"]][:200],
        "hanging_after_ms": after_ms,
    }
    return Page("hanging.html", "Open and hanging transactions", data)
