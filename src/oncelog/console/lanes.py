"""Transactions of a partition laid out as bars: a lane per partition, overlapping bars in rows. No I/O.

The x axis goes from 0 to `WIDTH` units, over offsets or over time. A bar goes from the first record of a transaction to
its marker; one that is open goes to the end of the lane. A bar goes into the first row whose last bar ended before it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

from oncelog.monitoring.open_transactions import OpenTransaction
from oncelog.monitoring.timeline import PlainRun, Timeline
from oncelog.monitoring.transaction_spans import TransactionOutcome, TransactionSpan

WIDTH: Final = 1000.0
BAR_WIDTH_MIN: Final = 10.5
"""Three pixels on the narrowest screen, where a lane has 290 of them."""
ROW_HEIGHT: Final = 14
PLAIN_HEIGHT: Final = 6
"""Of the line below the bars."""
PLAIN_WIDTH_MIN: Final = 2.0
BAR_HEIGHT: Final = 10
PACKED_ROWS_MAX: Final = 6
"""If more transactions overlap, each id gets a row of its own instead: packed ones cannot be followed."""
ROWS_MAX: Final = 12
"""What does not fit is put into the last row, over others: the table below has all."""
BARS_MAX: Final = 150
"""The newest of a lane. More could not be told apart on most screens."""
PLAIN_MAX: Final = 150
"""Runs of records outside of transactions, likewise."""
OFFSET_AXIS: Final = "offset"
TIME_AXIS: Final = "time"
AXES: Final = (OFFSET_AXIS, TIME_AXIS)
SORTS: Final[Mapping[str, Callable[[dict[str, Any]], Any]]] = {
    "newest": lambda bar: -bar["first_offset"],
    "longest": lambda bar: -(bar["lasted_ms"] or 0),
    "most records": lambda bar: -bar["records"],
    "most bytes": lambda bar: -bar["bytes"],
    "id": lambda bar: (bar["transactional_id"] or "", -bar["first_offset"]),
}
"""Orders of the table below a lane."""


@dataclass(frozen=True, slots=True)
class Scale:
    low: int
    high: int

    def x(self, value: int) -> float:
        if self.high <= self.low:
            return 0.0
        return round(min(max((value - self.low) / (self.high - self.low), 0.0), 1.0) * WIDTH, 2)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a bar is drawn."""

    x: float
    width: float
    row: int


def stack(extents: Sequence[tuple[float, float]]) -> list[Place]:
    """Places for extents (from, to), which come in the order in which they begin."""
    ends: list[float] = []
    places = []
    for begin, end in extents:
        place = _place(begin, end, 0)
        row = next((number for number, last in enumerate(ends) if last <= place.x), len(ends))
        row = min(row, ROWS_MAX - 1)
        if row == len(ends):
            ends.append(0.0)
        ends[row] = max(ends[row], place.x + place.width + 1)
        places.append(replace(place, row=row))
    return places


def most_at_once(extents: Sequence[tuple[float, float]]) -> int:
    """How many overlap at most, whatever the width is at which they are drawn."""
    changes = sorted(change for begin, end in extents if end > begin for change in ((begin, 1), (end, -1)))
    return max(accumulate(change for _, change in changes), default=0)


def in_rows(extents: Sequence[tuple[float, float]], owners: Sequence[Hashable]) -> list[Place]:
    """Places in a row for each owner, in the order in which owners come."""
    rows: dict[Hashable, int] = {}
    return [
        _place(begin, end, min(rows.setdefault(owner, len(rows)), ROWS_MAX - 1))
        for (begin, end), owner in zip(extents, owners, strict=True)
    ]


def _place(begin: float, end: float, row: int) -> Place:
    width = max(end - begin, BAR_WIDTH_MIN)
    return Place(round(min(begin, WIDTH - width), 2), round(width, 2), row)


def common_scale(timelines: Sequence[Timeline], axis: str, now_ms: int) -> Scale | None:
    """One scale for all lanes, so that what happened together stands together; None without lanes."""
    scales = [scale_of(one, axis, now_ms) for one in timelines if one.spans or one.plain]
    if not scales:
        return None
    return Scale(min(one.low for one in scales), max(one.high for one in scales))


def lane_row(
    timeline: Timeline, names: dict[int, str], axis: str, now_ms: int, common: Scale | None = None
) -> dict[str, Any]:
    """A lane as JSON values: its bars, the last stable offset, and who holds readers back."""
    spans = timeline.spans[-BARS_MAX:]
    opened = {(one.producer.producer_id, one.start_offset): one for one in timeline.open}
    scale = common if common is not None else scale_of(timeline, axis, now_ms)
    extents = [_extent(span, scale, axis) for span in spans]
    places = stack(extents)
    is_by_id = most_at_once(extents) > PACKED_ROWS_MAX
    if is_by_id:
        places = in_rows(extents, [names.get(span.producer_id, span.producer_id) for span in spans])
    offsets = timeline.offsets
    holder = timeline.open[0] if timeline.open and offsets.held_back else None
    rows = max((place.row for place in places), default=0) + 1
    return {
        "partition": timeline.partition.partition,
        "start": timeline.start,
        "end": timeline.end,
        "asked_start": timeline.asked_start,
        "asked_end": timeline.asked_end,
        "log_start": offsets.start,
        "last_stable": offsets.last_stable,
        "high_watermark": offsets.end,
        "held_back": offsets.held_back,
        "holder": holder_row(holder, now_ms) if holder is not None else None,
        "left_out": len(timeline.spans) - len(spans),
        "by_id": is_by_id,
        "height": rows * ROW_HEIGHT + 6 + PLAIN_HEIGHT,
        "plain": [_plain_row(run, scale, axis) for run in timeline.plain[-PLAIN_MAX:]],
        "stable_x": _stable_x(timeline, scale, axis, holder),
        "low": scale.low,
        "high": scale.high,
        "bars": [
            {**_bar_row(span, place, names, opened, now_ms), "marker_x": _marker_x(span, scale, axis)}
            for span, place in zip(spans, places, strict=True)
        ],
    }


def table_order(bars: Sequence[dict[str, Any]], sort: str) -> list[int]:
    """The numbers of the bars, in the order in which the table has them."""
    return sorted(range(len(bars)), key=lambda number: SORTS[sort](bars[number]))


def scale_of(timeline: Timeline, axis: str, now_ms: int) -> Scale:
    if axis == OFFSET_AXIS:
        return Scale(timeline.start, max(timeline.end, timeline.start + 1))
    spans, plain = timeline.spans[-BARS_MAX:], timeline.plain[-PLAIN_MAX:]
    if not spans and not plain:
        return Scale(now_ms - 1, now_ms)
    is_open = any(span.outcome is TransactionOutcome.OPEN for span in spans)
    ends = [span.marker_timestamp or span.last_timestamp for span in spans] + [run.last_timestamp for run in plain]
    begins = [span.first_timestamp for span in spans] + [run.first_timestamp for run in plain]
    return Scale(min(begins), max(*ends, now_ms) if is_open else max(ends) + 1)


def _plain_row(run: PlainRun, scale: Scale, axis: str) -> dict[str, float]:
    first, last = (
        (run.first_offset, run.last_offset + 1) if axis == OFFSET_AXIS else (run.first_timestamp, run.last_timestamp)
    )
    x = min(scale.x(first), WIDTH - PLAIN_WIDTH_MIN)
    return {"x": x, "to": max(scale.x(last), x + PLAIN_WIDTH_MIN)}


def _marker_x(span: TransactionSpan, scale: Scale, axis: str) -> float | None:
    """Where the marker of a transaction is drawn; None while it is open."""
    place = span.marker_offset if axis == OFFSET_AXIS else span.marker_timestamp
    return None if place is None else scale.x(place)


def _extent(span: TransactionSpan, scale: Scale, axis: str) -> tuple[float, float]:
    is_open = span.outcome is TransactionOutcome.OPEN
    if axis == OFFSET_AXIS:
        return scale.x(span.first_offset), WIDTH if is_open else scale.x(span.end_offset)
    end_ms = span.marker_timestamp if span.marker_timestamp is not None else span.last_timestamp
    return scale.x(span.first_timestamp), WIDTH if is_open else scale.x(end_ms)


def _stable_x(timeline: Timeline, scale: Scale, axis: str, holder: OpenTransaction | None) -> float | None:
    """Where the dashed line is; None if readers may read to the end, or if it is not in the range.

    By time it is where the transaction begins that holds readers back: what was written since then waits.
    """
    stable = timeline.offsets.last_stable
    if holder is None or not timeline.start <= stable < timeline.end:
        return None
    if axis == OFFSET_AXIS:
        return scale.x(stable)
    began_ms = [span.first_timestamp for span in timeline.spans if span.first_offset == holder.start_offset]
    return scale.x(began_ms[0]) if began_ms else None


def _bar_row(
    span: TransactionSpan,
    place: Place,
    names: dict[int, str],
    opened: dict[tuple[int, int], OpenTransaction],
    now_ms: int,
) -> dict[str, Any]:
    one = opened.get((span.producer_id, span.first_offset))
    age_ms = one.age_ms(now_ms) if one is not None else max(now_ms - span.first_timestamp, 0)
    is_open = span.outcome is TransactionOutcome.OPEN
    return {
        "transactional_id": names.get(span.producer_id),
        "producer_id": span.producer_id,
        "producer_epoch": span.producer_epoch,
        "outcome": span.outcome.value,
        "first_offset": span.first_offset,
        "last_offset": span.last_offset,
        "marker_offset": span.marker_offset,
        "marker_epoch": span.marker_epoch,
        "coordinator_epoch": span.coordinator_epoch,
        "records": span.records,
        "batches": span.batches,
        "bytes": span.size_bytes,
        "first_ms": span.first_timestamp,
        "marker_ms": span.marker_timestamp,
        "lasted_ms": age_ms if is_open else max((span.marker_timestamp or 0) - span.first_timestamp, 0),
        "x": place.x,
        "width": place.width,
        "y": place.row * ROW_HEIGHT + 3,
    }


def holder_row(one: OpenTransaction, now_ms: int) -> dict[str, Any]:
    """An open transaction, with what will become of it in words of data: `aborted_in_ms`, `decided`, `hanging`."""
    row = one.as_row(now_ms)
    age, timeout = row["age_ms"], row["timeout_ms"]
    will_time_out = not one.is_hanging and not one.is_decided and age is not None and timeout is not None
    return {
        **row,
        "decided": one.is_decided,
        "aborted_in_ms": max(timeout - age, 0) if will_time_out else None,
        "remedy": list(one.remedy) or None,
    }
