"""How transactions become bars."""

from __future__ import annotations

from oncelog.client import TopicPartition
from oncelog.console.lanes import (
    BAR_WIDTH_MIN,
    PACKED_ROWS_MAX,
    ROWS_MAX,
    WIDTH,
    Scale,
    common_scale,
    lane_row,
    stack,
    table_order,
)
from oncelog.monitoring.offsets import PartitionOffsets
from oncelog.monitoring.open_transactions import OpenTransaction
from oncelog.monitoring.timeline import PlainRun, Timeline
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


def timeline(
    *spans: TransactionSpan,
    stable: int = 100,
    end: int = 100,
    opened: tuple[OpenTransaction, ...] = (),
    plain: tuple[PlainRun, ...] = (),
) -> Timeline:
    return Timeline(PLACE, PartitionOffsets(0, stable, end), 0, end, spans, opened, plain, 0, end)


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
    row = lane_row(timeline(*(span(number, number, 40, None) for number in range(ROWS_MAX + 5))), {}, "offset", 0)
    assert len({bar["y"] for bar in row["bars"]}) == ROWS_MAX


def test_where_many_overlap_each_id_has_a_row_of_its_own() -> None:
    few = [span(number, number, 40, None) for number in range(PACKED_ROWS_MAX)]
    assert not lane_row(timeline(*few), {}, "offset", 0)["by_id"]
    many = [span(9, 0, 1, 2), *(span(number, 10 + number, 40, None) for number in range(8)), span(9, 50, 51, 52)]
    row = lane_row(timeline(*many), {9: "shop", 3: "shop"}, "offset", 0)
    assert row["by_id"]
    ys = [bar["y"] for bar in row["bars"]]
    assert ys[0] == ys[-1] == ys[4], "the same id, with one producer and with another"
    assert len(set(ys)) == 8


def test_bars_that_are_only_drawn_over_each_other_do_not_overlap() -> None:
    """One after the other, and all of them in a place that is narrower than a bar."""
    crowd = [span(number, number, number, number + 1) for number in range(0, 20, 2)]
    late = span(99, 90_000, 90_001, 90_002)
    row = lane_row(timeline(*crowd, late, stable=99_000, end=99_000), {}, "offset", 0)
    assert not row["by_id"]
    assert len({bar["y"] for bar in row["bars"]}) == len(crowd), "packed, so that each can be seen"


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
    by_time = lane_row(
        timeline(span(1, 0, 8, 9), span(2, 40, 50, None), stable=40, opened=(holder,)), {}, "time", 1_080
    )
    assert by_time["stable_x"] == by_time["bars"][1]["x"] == 500.0
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


def test_markers_are_ticks_and_plain_records_a_line() -> None:
    plain = (PlainRun(10, 39, 1_010, 1_039), PlainRun(99, 99, 1_099, 1_099))
    found = timeline(span(1, 0, 8, 9), span(2, 40, 50, None), plain=plain)
    row = lane_row(found, {}, "offset", 3_000)
    assert [bar["marker_x"] for bar in row["bars"]] == [90.0, None]
    assert row["plain"] == [{"x": 100.0, "to": 400.0}, {"x": 990.0, "to": 1000.0}]
    by_time = lane_row(found, {}, "time", 3_000)
    assert by_time["bars"][0]["marker_x"] == 4.5
    assert by_time["plain"][1]["to"] - by_time["plain"][1]["x"] == 2.0, "never too short to be seen"


def test_a_common_scale_fits_all_lanes() -> None:
    first, second = timeline(span(1, 0, 8, 9)), timeline(span(1, 50, 58, 59))
    common = common_scale([first, second, timeline()], "time", 9_000)
    assert common == Scale(1_000, 1_060)
    (bar,) = lane_row(second, {}, "time", 9_000, common)["bars"]
    assert bar["x"] == 833.33
    assert common_scale([timeline()], "time", 9_000) is None


def test_the_table_of_a_lane_is_sorted() -> None:
    bars = lane_row(timeline(span(1, 0, 30, 31), span(2, 40, 41, 42), span(3, 50, 59, 60)), {}, "offset", 0)["bars"]
    assert table_order(bars, "newest") == [2, 1, 0]
    assert table_order(bars, "most records") == [0, 2, 1]
    assert table_order(bars, "longest") == [0, 2, 1]
    bars[1]["lasted_ms"] = None  # records may have no time
    assert table_order(bars, "longest") == [0, 2, 1]
