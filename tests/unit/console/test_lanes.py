"""How transactions become bars."""

from __future__ import annotations

from oncelog.client import TopicPartition
from oncelog.console.lanes import BAR_WIDTH_MIN, ROWS_MAX, WIDTH, Scale, lane_row, stack
from oncelog.monitoring.offsets import PartitionOffsets
from oncelog.monitoring.open_transactions import OpenTransaction
from oncelog.monitoring.timeline import Timeline
from oncelog.monitoring.transaction_spans import TransactionOutcome, TransactionSpan
from tests.unit.monitoring.fake_admin import described, producer

PLACE = TopicPartition("orders", 0)


def span(producer_id: int, first: int, last: int, marker: int | None, aborted: bool = False) -> TransactionSpan:
    found = TransactionSpan(producer_id, 0, first, last, 1_000 + first, 1_000 + last, last - first + 1, 1, 100)
    if marker is not None:
        found.marker_offset = marker
        found.marker_timestamp = 1_000 + marker
        found.outcome = TransactionOutcome.ABORTED if aborted else TransactionOutcome.COMMITTED
    return found


def timeline(*spans: TransactionSpan, stable: int = 100, opened: tuple[OpenTransaction, ...] = ()) -> Timeline:
    return Timeline(PLACE, PartitionOffsets(0, stable, 100), 0, 100, spans, opened)


def test_bars_that_overlap_are_stacked_and_rows_are_used_again() -> None:
    places = stack([(0, 300), (100, 200), (250, 400), (500, 600)])
    assert [place.row for place in places] == [0, 1, 1, 0]


def test_a_bar_is_never_too_thin_to_be_seen_and_never_outside() -> None:
    (place,) = stack([(WIDTH, WIDTH)])
    assert place.width == BAR_WIDTH_MIN
    assert place.x + place.width == WIDTH


def test_rows_are_bounded() -> None:
    places = stack([(0, WIDTH)] * (ROWS_MAX + 5))
    assert max(place.row for place in places) == ROWS_MAX - 1


def test_an_empty_scale_does_not_divide_by_zero() -> None:
    assert Scale(5, 5).x(5) == 0


def test_a_lane_names_the_holder_and_the_line_is_where_its_transaction_begins() -> None:
    holder = OpenTransaction(PLACE, producer(2, 40), "slow", described("slow", 2, PLACE), "")
    row = lane_row(timeline(span(1, 0, 8, 9), span(2, 40, 50, None), span(3, 60, 70, 71, True), stable=40,
                            opened=(holder,)), {1: "quick", 2: "slow"}, "offset", 3_000)  # fmt: skip
    assert (row["holder"]["transactional_id"], row["held_back"], row["stable_x"]) == ("slow", 60, 400.0)
    committed, opened, aborted = row["bars"]
    assert [bar["outcome"] for bar in row["bars"]] == ["committed", "open", "aborted"]
    assert (committed["x"], committed["width"]) == (0, 100)
    assert opened["x"] + opened["width"] == WIDTH, "an open one goes to the end"
    assert opened["lasted_ms"] == 3_000 - described("slow", 2, PLACE).start_time_ms
    assert aborted["y"] > opened["y"]
    assert aborted["transactional_id"] is None


def test_without_an_open_transaction_there_is_no_line() -> None:
    row = lane_row(timeline(span(1, 0, 8, 9)), {}, "offset", 3_000)
    assert (row["holder"], row["stable_x"]) == (None, None)


def test_by_time_a_bar_goes_from_its_first_record_to_its_marker() -> None:
    row = lane_row(timeline(span(1, 0, 8, 10), span(2, 50, 60, 99)), {}, "time", 3_000)
    first, second = row["bars"]
    assert (first["x"], first["width"]) == (0, 100)
    assert second["x"] == 500
    assert row["low"] == 1_000
