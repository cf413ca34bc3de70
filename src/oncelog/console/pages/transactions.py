"""Transactional ids: all of them, one with its history, and transactions that hold readers back or hang."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from oncelog.client.admin import ConfigResource, ResourceType, TransactionDescription
from oncelog.console.lanes import holder_row
from oncelog.console.page import Console, NotThere, Page, Query, if_readable, paged
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.monitoring.transaction_history import BEGAN, FORGOTTEN, TransactionEvent, initialisations, read_history
from oncelog.monitoring.transactions import DECIDED_STATES, OPEN_STATES, STATES, describe_known, description_row

HISTORY_OFFSETS_MAX: Final = 50_000
EVENTS_MAX: Final = 200
SHARED_ID_STARTS: Final = 3
"""So many starts within a minute: two producers fence each other."""
EXPIRATION: Final = "transactional.id.expiration.ms"
REST_SHARE: Final = 5
OPEN_MAX: Final = 200
"""Rows on the page of open transactions; the oldest of each partition come first."""
HIDDEN_MAX: Final = 10
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
    found, history = None, None
    # Without an id there is no coordinator to ask: clusters refuse the question.
    if transactional_id:
        found = describe_known(console.admin, [transactional_id]).get(transactional_id)
        read = partial(read_history, console.admin, transactional_id, offsets_max=HISTORY_OFFSETS_MAX)
        history = if_readable(lambda: console.recent.get(("history", transactional_id), read))
    events = history or []
    if found is None and not events:
        raise NotThere(
            f"No coordinator knows the transactional id {transactional_id!r}.",
            "__transaction_state has nothing about it either.",
        )
    now_ms = console.now_ms()
    starts = initialisations(events, now_ms - 60_000)
    shown = events[-EVENTS_MAX:]
    data: dict[str, Any] = {
        "transactional_id": transactional_id,
        "now": description_row(found, now_ms) if found is not None else None,
        "topics": sorted({partition.topic for partition in found.partitions}) if found is not None else [],
        "starts_last_minute": starts,
        "shared": starts >= SHARED_ID_STARTS,
        "expires_ms": _expires_ms(console, events) if found is None or found.state not in OPEN_STATES else None,
        "missing_markers": _missing_markers(console, found) if found is not None else [],
        "events": [{**event.as_row(), "lasted_ms": lasted_ms(event)} for event in shown],
        "events_left_out": len(events) - len(shown),
        "history_hidden": history is None or TRANSACTION_STATE_TOPIC not in console.snapshot().topics,
        "strip": state_strip(shown, now_ms),
        "can_fence": found is not None and found.state == "Ongoing",
        "command": console.command("txn", "fence", transactional_id),
        "history_command": console.command("txn", "history", transactional_id),
    }
    return Page("transaction.html", f"Transactional id {transactional_id}", data, tables={"changes": data["events"]})


def lasted_ms(event: TransactionEvent) -> int | None:
    """How long the transaction had been open; None for events outside of one."""
    if event.start_ms < 0 or event.what == BEGAN:
        return None
    return max(event.time_ms - event.start_ms, 0)


def _expires_ms(console: Console, events: Sequence[TransactionEvent]) -> int | None:
    """When its coordinator forgets the id if nobody uses it; None if brokers do not tell."""
    brokers = console.snapshot().brokers
    if not events or not brokers or events[-1].what == FORGOTTEN:
        return None
    resource = ConfigResource(ResourceType.BROKER, str(brokers[0].broker.node_id))
    try:
        found = console.recent.get(
            ("expiration", resource), lambda: console.admin.describe_configs(resource, [EXPIRATION]), keep_s=60.0
        )
    except KafkaError as error:
        if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return None
    value = found[EXPIRATION].value if EXPIRATION in found else None
    return events[-1].time_ms + int(value) if value is not None else None


def _missing_markers(console: Console, found: TransactionDescription) -> list[dict[str, Any]]:
    """Of a transaction whose outcome is decided: the partitions that wait for a marker, with their leaders."""
    if found.state not in DECIDED_STATES:
        return []
    topics = console.snapshot().topics
    leaders = {
        TopicPartition(name, one.info.partition): one.info.leader
        for name in {partition.topic for partition in found.partitions} & topics.keys()
        for one in topics[name].partitions
    }
    return [
        {"partition": str(partition), "leader": leader if (leader := leaders.get(partition, -1)) >= 0 else None}
        for partition in sorted(found.partitions)
    ]


def state_strip(events: Sequence[TransactionEvent], now_ms: int) -> dict[str, Any] | None:
    """States over time as segments, and epochs as steps, in units of `STRIP_WIDTH`; None without a history."""
    if not events:
        return None
    low, last = events[0].time_ms, events[-1]
    # A long rest after the last change would leave no room for the changes.
    rest_ms = now_ms - last.time_ms if last.state in OPEN_STATES else (last.time_ms - low) // REST_SHARE
    high = max(min(last.time_ms + rest_ms, now_ms), last.time_ms + 1)

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
    opened = [row for row in rows if not row["hanging"]]
    hidden = [str(held.partition) for held in snapshot.held_back if held.is_hidden]
    data: dict[str, Any] = {
        "hanging": [row for row in rows if row["hanging"]],
        "open": opened[:OPEN_MAX],
        "left_out": max(len(opened) - OPEN_MAX, 0),
        "hanging_after_ms": after_ms,
        "hidden_partitions": hidden[:HIDDEN_MAX],
        "hidden_left_out": max(len(hidden) - HIDDEN_MAX, 0),
    }
    tables = {"open transactions": opened, "hanging transactions": data["hanging"]}
    return Page("hanging.html", "Open and hanging transactions", data, tables=tables)
