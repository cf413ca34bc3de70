"""What templates use to show things."""

from __future__ import annotations

import pytest
from markupsafe import Markup, escape

from oncelog.console import filters
from oncelog.console.pages.transactions import STRIP_WIDTH, state_strip
from oncelog.console.template_environment import TemplateEnvironment
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


def test_a_bar_tells_of_its_transaction_in_lines() -> None:
    bar = {
        "transactional_id": "<i>&",
        "producer_id": 7,
        "producer_epoch": 2,
        "outcome": "committed",
        "lasted_ms": 1500,
        "first_offset": 10,
        "last_offset": 19,
        "marker_offset": 20,
        "records": 1,
        "bytes": 1200,
        "x": 3.5,
        "marker_epoch": 3,
        "coordinator_epoch": 4,
    }
    assert filters.bar_text(bar) == (
        "&lt;i&gt;&amp;: committed after 1.5 s\n"
        "offsets 10 to 19, marker at 20\n"
        "1 record, 1.2 kB, producer 7 epoch 2\n"
        "marker with epoch 3, coordinator epoch 4"
    )
    opened = {"transactional_id": None, "outcome": "open", "marker_offset": None, "marker_epoch": None}
    assert filters.bar_text({**bar, **opened}).splitlines()[:2] == ["producer 7: open for 1.5 s", "offsets 10 to 19"]
    assert filters.bar_text({**bar, **opened, "lasted_ms": None}).splitlines()[0] == "producer 7: open"


def test_bars_are_drawn_with_nothing_of_a_name_that_is_no_text() -> None:
    name = """'"><script>&/ä"""
    bar = {
        "transactional_id": name,
        "producer_id": 7,
        "producer_epoch": 2,
        "outcome": "committed",
        "lasted_ms": 5,
        "first_offset": 10,
        "last_offset": 19,
        "marker_offset": 20,
        "records": 2,
        "bytes": 20,
        "marker_epoch": 3,
        "coordinator_epoch": 4,
        "x": 1.5,
        "y": 3,
        "width": 20.0,
        "marker_x": 9.5,
    }
    opened = {**bar, "transactional_id": None, "outcome": "open", "first_offset": 21, "marker_x": None}
    first, second = filters.drawn_bars({"partition": 4, "bars": [bar, opened]}).split("\n<a ")
    assert first.startswith('<a href="/transactions/%27%22%3E%3Cscript%3E%26%2F%C3%A4" tabindex="0" data-bar="4-10">')
    assert f"<title>{escape(name)}: committed after 5 ms\n" in first
    assert first.endswith('<line class="tick" x1="9.5" x2="9.5" y1="1" y2="15"></line>')
    assert second.startswith('href="#row-4-21" tabindex="-1" data-bar="4-21"><title>producer 7: open')
    assert second.endswith(
        '<rect class="bar open" x="1.5" y="3" width="20.0" height="10" fill="url(#stripes)"></rect></a>'
    )
    assert isinstance(filters.drawn_bars({"partition": 4, "bars": []}), Markup)


def test_names_in_templates_are_items_of_rows_also_where_dictionaries_have_a_method_of_that_name() -> None:
    made = TemplateEnvironment().from_string("{{ row.items }} {{ row.upper.lower() }} {{ 'x'.upper() }} {{ row.none }}")
    assert made.render(row={"items": 3, "upper": "U"}) == "3 u X "
