"""The state of a cluster in sentences, most urgent first. Each one links to the page with the details."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final
from urllib.parse import quote

from oncelog.console.watch import LagSample
from oncelog.core.display import count_of, show_duration
from oncelog.monitoring.open_transactions import HeldBackPartition, OpenTransaction
from oncelog.monitoring.snapshot import ClusterSnapshot

GROWTH_WINDOW_MS: Final = 10_000
BEHIND_MIN: Final = 1_000
"""A group that is less behind, and not waiting, is not worth a sentence."""
HELD_MIN_MS: Final = 5_000
"""Transactions that are open for less are the ordinary course of things."""
SENTENCES_MAX: Final = 20
NAMES_MAX: Final = 3


class Urgency(IntEnum):
    URGENT = 0
    WARNING = 1
    GOOD = 2

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Sentence:
    urgency: Urgency
    text: str
    link: str

    def as_row(self) -> dict[str, Any]:
        return {"urgency": self.urgency.word, "text": self.text, "link": self.link}


def sentences(
    snapshot: ClusterSnapshot, earlier: tuple[LagSample, ...], hanging_after_ms: int
) -> tuple[list[Sentence], int]:
    """The most urgent ones, and how many more there are."""
    found = [
        *_without_leader(snapshot),
        *_held_back(snapshot, hanging_after_ms),
        *_groups_behind(snapshot, earlier),
        *_under_replicated(snapshot),
    ]
    found.sort(key=lambda one: one.urgency)
    if not found:
        found = [Sentence(Urgency.GOOD, _all_is_well(snapshot), "/topics")]
    return found[:SENTENCES_MAX], max(len(found) - SENTENCES_MAX, 0)


def _all_is_well(snapshot: ClusterSnapshot) -> str:
    opened = len({one.producer.producer_id for one in snapshot.open})
    hidden = sum(one.is_hidden for one in snapshot.held_back)
    transactions = (
        f"{count_of(opened, 'transaction')} {_is_are(opened)} in progress" if opened else "no transaction is open"
    )
    if hidden:
        transactions = f"transactions that ACLs hide from you are open on {count_of(hidden, 'partition')}"
    return f"Every partition has a leader, no group is far behind, and {transactions}."


def _without_leader(snapshot: ClusterSnapshot) -> Iterator[Sentence]:
    for name, topic in snapshot.topics.items():
        lost = topic.without_leader
        if lost:
            which = _names([str(number) for number in lost])
            what = "partition" if len(lost) == 1 else "partitions"
            yield Sentence(Urgency.URGENT, f"Topic {name} has no leader for {what} {which}.", topic_link(name))


def _under_replicated(snapshot: ClusterSnapshot) -> Iterator[Sentence]:
    for name, topic in snapshot.topics.items():
        lacking = set(topic.under_replicated) - set(topic.without_leader)
        if lacking:
            text = f"{count_of(len(lacking), 'partition')} of {name} {_is_are(len(lacking))} not fully replicated."
            yield Sentence(Urgency.WARNING, text, topic_link(name))


def _held_back(snapshot: ClusterSnapshot, hanging_after_ms: int) -> Iterator[Sentence]:
    for held in snapshot.held_back:
        for one in held.blocking[:1]:
            age = one.age_ms(snapshot.taken_ms)
            if one.is_hanging:
                sure = age is None or age >= hanging_after_ms
                yield Sentence(Urgency.URGENT, _hanging_text(held, one, age, sure), "/hanging")
            elif age is None or age >= HELD_MIN_MS:
                waiting = snapshot.groups_waiting_at(held.partition)
                yield Sentence(
                    Urgency.URGENT if waiting else Urgency.WARNING,
                    _holding_text(held, one, age, waiting),
                    timeline_link(held.partition.topic),
                )


def _hanging_text(held: HeldBackPartition, one: OpenTransaction, age: int | None, sure: bool) -> str:
    since = "" if age is None else f" for {show_duration(age)}"
    verb = "hangs" if sure else "seems to hang"
    name = one.transactional_id or f"producer {one.producer.producer_id}"
    return (
        f"A transaction of {name} {verb} on {held.partition} at offset {one.start_offset}{since}: "
        "no coordinator will end it."
    )


def _holding_text(held: HeldBackPartition, one: OpenTransaction, age: int | None, waiting: list[str]) -> str:
    since = "" if age is None else f" for {show_duration(age)}"
    name = one.transactional_id or f"Producer {one.producer.producer_id}"
    groups = ""
    if waiting:
        groups = (
            f"; group {waiting[0]} waits" if len(waiting) == 1 else f"; {len(waiting)} groups wait: {_names(waiting)}"
        )
    return f"{name} has held {held.partition} at offset {held.offsets.last_stable}{since}{groups}."


def _groups_behind(snapshot: ClusterSnapshot, earlier: tuple[LagSample, ...]) -> Iterator[Sentence]:
    before = next((one for one in reversed(earlier) if one.taken_ms <= snapshot.taken_ms - GROWTH_WINDOW_MS), None)
    for state in snapshot.groups:
        lag = state.group.lag if state.group is not None else 0
        if lag < BEHIND_MIN:
            continue
        name = state.listing.group_id
        was = before.lags.get(name) if before is not None else None
        trend = " and growing" if was is not None and lag > was else ""
        nobody = " and has no members" if state.listing.state == "Empty" else ""
        text = f"Group {name} is {count_of(lag, 'offset')} behind{trend}{nobody}."
        yield Sentence(Urgency.WARNING, text, group_link(name))


def appends_per_second(earlier: tuple[LagSample, ...]) -> float | None:
    """Offsets that user topics grew by, over about ten seconds; None until there are two samples."""
    span = _window(tuple(one for one in earlier if one.end_offsets is not None))
    if span is None:
        return None
    first, last = span
    return max((last.end_offsets or 0) - (first.end_offsets or 0), 0) * 1000 / (last.taken_ms - first.taken_ms)


@dataclass(frozen=True, slots=True)
class Progress:
    """How fast a group reads, over about ten seconds."""

    offsets_per_second: float
    catches_up_in_ms: int | None
    """None if it is not getting nearer to the end."""


def progress_of(group_id: str, earlier: tuple[LagSample, ...]) -> Progress | None:
    """None until there are two samples of the group."""
    span = _window(tuple(one for one in earlier if group_id in one.lags))
    if span is None:
        return None
    first, last = span
    lasted_ms = last.taken_ms - first.taken_ms
    read = max(last.committed.get(group_id, 0) - first.committed.get(group_id, 0), 0)
    nearer, lag = first.lags[group_id] - last.lags[group_id], last.lags[group_id]
    catches_up = int(lag * lasted_ms / nearer) if nearer > 0 and lag > 0 else None
    return Progress(read * 1000 / lasted_ms, catches_up)


def _window(samples: tuple[LagSample, ...]) -> tuple[LagSample, LagSample] | None:
    """The last sample and one about ten seconds before it."""
    if len(samples) < 2:
        return None
    last = samples[-1]
    first = next((one for one in samples if one.taken_ms >= last.taken_ms - GROWTH_WINDOW_MS), samples[0])
    if first is last:
        first = samples[-2]
    return (first, last) if last.taken_ms > first.taken_ms else None


def _names(names: list[str]) -> str:
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _is_are(number: int) -> str:
    return "is" if number == 1 else "are"


def topic_link(topic: str) -> str:
    return f"/topics/{quote(topic, safe='')}"


def timeline_link(topic: str) -> str:
    return f"/topics/{quote(topic, safe='')}/timeline"


def group_link(group: str) -> str:
    return f"/groups/{quote(group, safe='')}"


def transaction_link(transactional_id: str) -> str:
    return f"/transactions/{quote(transactional_id, safe='')}"
