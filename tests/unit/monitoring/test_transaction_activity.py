"""Rates, totals and what is open, from events."""

from __future__ import annotations

from oncelog.monitoring.transaction_activity import EVENTS_KEPT, TransactionActivity
from oncelog.monitoring.transaction_history import ABORTED, BEGAN, COMMITTED, GREW, TransactionEvent
from tests.unit.monitoring.fake_admin import described


def event(what: str, state: str, name: str = "a") -> TransactionEvent:
    return TransactionEvent(1, name, what, state, 1, 0, 60_000, 500)


def test_what_begins_is_open_until_it_ends() -> None:
    activity = TransactionActivity()
    activity.add(event(BEGAN, "Ongoing"), 0)
    activity.add(event(GREW, "Ongoing"), 0)
    assert activity.open["a"].start_ms == 500
    activity.add(event(COMMITTED, "CompleteCommit"), 0)
    assert activity.open == {}
    assert activity.totals[BEGAN] == activity.totals[COMMITTED] == 1


def test_what_is_open_at_the_start_is_shown_unless_it_has_ended_meanwhile() -> None:
    found = [described("open", 1), described("ended", 2, state="CompleteAbort")]
    assert list(TransactionActivity(found).open) == ["open"]


def test_rates_are_those_of_the_last_ten_seconds() -> None:
    activity = TransactionActivity()
    for now_ms in range(0, 10_000, 500):
        activity.add(event(ABORTED, "CompleteAbort"), now_ms)
    assert activity.rate(ABORTED, 9_500) == 2.0
    assert activity.rate(COMMITTED, 9_500) == 0.0
    assert activity.rate(ABORTED, 14_750) == 1.0
    assert activity.rate(ABORTED, 30_000) == 0.0
    assert activity.totals[ABORTED] == 20


def test_only_the_last_events_are_kept() -> None:
    activity = TransactionActivity()
    for number in range(EVENTS_KEPT + 5):
        activity.add(event(BEGAN, "Ongoing", f"id-{number}"), 0)
    assert [one.transactional_id for one in activity.last] == [f"id-{n}" for n in range(5, EVENTS_KEPT + 5)]
