"""What templates use to show things."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from oncelog.console import filters
from oncelog.console.pages.transactions import STRIP_WIDTH, state_strip
from oncelog.monitoring import transaction_history as history
from oncelog.monitoring.transaction_history import TransactionEvent
from oncelog.monitoring.transactions import age_ms
from tests.unit.monitoring.fake_admin import described


def test_cells_know_the_names_of_their_columns() -> None:
    table = Markup(
        '<thead><tr><th scope="col">A</th><th scope="col" class="number">B &amp; C</th></tr></thead>'
        '<tbody><tr class="x"><th scope="row">1</th><td>&lt;td&gt;</td><td>3</td></tr>'
        '<tr><td colspan="2">x</td></tr></tbody>'
    )
    assert filters.labelled(table) == (
        '<thead><tr><th scope="col">A</th><th scope="col" class="number">B &amp; C</th></tr></thead>'
        '<tbody><tr class="x"><th data-label="A" scope="row">1</th><td data-label="B &amp; C">&lt;td&gt;</td>'
        "<td>3</td></tr>"
        '<tr><td data-label="A" colspan="2">x</td></tr></tbody>'
    )


def test_times_are_relative_to_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "wall_ms", lambda: 100_000)
    assert filters.ago(87_700) == "12.3 s ago"
    assert filters.ago(407_000) == "in 5 min 7 s"


def test_only_an_open_transaction_has_an_age() -> None:
    """Coordinators tell when a transaction that has ended began."""
    ended = described("shop", 1)._replace(state="CompleteCommit", start_time_ms=500)
    assert age_ms(ended, 2_000) is None
    assert age_ms(ended._replace(state="Ongoing"), 2_000) == 1_500


def test_a_strip_leaves_room_for_changes_after_a_long_rest() -> None:
    events = [TransactionEvent(at, "shop", what, state) for at, what, state in (
        (0, history.BEGAN, "Ongoing"), (1_000, history.COMMITTED, "CompleteCommit"))]  # fmt: skip
    strip = state_strip(events, 1_000_000)
    assert strip is not None
    assert (strip["high_ms"], strip["segments"][1]["x"]) == (1_200, round(STRIP_WIDTH / 1.2, 2))
    still_open = state_strip(events[:1], 1_000_000)
    assert still_open is not None
    assert still_open["high_ms"] == 1_000_000
