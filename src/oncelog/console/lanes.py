"""Transactions of a partition laid out as bars: a lane per partition, overlapping bars in rows. No I/O.

The x axis goes from 0 to `WIDTH` units, over offsets or over time. A bar goes from the first record of a transaction to
its marker; one that is open goes to the end of the lane. A bar goes into the first row whose last bar ended before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from oncelog.monitoring.open_transactions import OpenTransaction
from oncelog.monitoring.timeline import Timeline
from oncelog.monitoring.transaction_spans import TransactionOutcome, TransactionSpan

WIDTH: Final = 1000.0
BAR_WIDTH_MIN: Final = 6.0
"""Two pixels on the narrowest screen."""
ROW_HEIGHT: Final = 14
BAR_HEIGHT: Final = 10
ROWS_MAX: Final = 12
"""What does not fit is put into the last row, over others: the table below has all."""
BARS_MAX: Final = 150
"""The newest of a lane. More could not be told apart on most screens."""
OFFSET_AXIS: Final = "offset"
TIME_AXIS: Final = "time"
AXES: Final = (OFFSET_AXIS, TIME_AXIS)


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
        width = max(end - begin, BAR_WIDTH_MIN)
        x = min(begin, WIDTH - width)
        row = next((number for number, last in enumerate(ends) if last <= x), len(ends))
        row = min(row, ROWS_MAX - 1)
        if row == len(ends):
            ends.append(0.0)
        ends[row] = max(ends[row], x + width + 1)
        places.append(Place(round(x, 2), round(width, 2), row))
    return places


def lane_row(timeline: Timeline, names: dict[int, str], axis: str, now_ms: int) -> dict[str, Any]:
    """A lane as JSON values: its bars, the last stable offset, and who holds readers back."""
    spans = timeline.spans[-BARS_MAX:]
    opened = {(one.producer.producer_id, one.start_offset): one for one in timeline.open}
    scale = _scale(timeline, spans, axis, now_ms)
    places = stack([_extent(span, scale, axis) for span in spans])
    offsets = timeline.offsets
    holder = timeline.open[0] if timeline.open and offsets.held_back else None
    rows = max((place.row for place in places), default=0) + 1
    return {
        "partition": timeline.partition.partition,
        "start": timeline.start,
        "end": timeline.end,
        "log_start": offsets.start,
        "last_stable": offsets.last_stable,
        "high_watermark": offsets.end,
        "held_back": offsets.held_back,
        "holder": holder_row(holder, now_ms) if holder is not None else None,
        "left_out": len(timeline.spans) - len(spans),
        "height": rows * ROW_HEIGHT + 6,
        "stable_x": _stable_x(timeline, scale, axis, holder),
        "low": scale.low,
        "high": scale.high,
        "bars": [_bar_row(span, place, names, opened, now_ms) for span, place in zip(spans, places, strict=True)],
    }


def _scale(timeline: Timeline, spans: Sequence[TransactionSpan], axis: str, now_ms: int) -> Scale:
    if axis == OFFSET_AXIS:
        return Scale(timeline.start, max(timeline.end, timeline.start + 1))
    if not spans:
        return Scale(now_ms - 1, now_ms)
    is_open = any(span.outcome is TransactionOutcome.OPEN for span in spans)
    last = max(span.marker_timestamp or span.last_timestamp for span in spans)
    return Scale(min(span.first_timestamp for span in spans), max(last, now_ms) if is_open else last + 1)


def _extent(span: TransactionSpan, scale: Scale, axis: str) -> tuple[float, float]:
    is_open = span.outcome is TransactionOutcome.OPEN
    if axis == OFFSET_AXIS:
        return scale.x(span.first_offset), WIDTH if is_open else scale.x(span.end_offset)
    end_ms = span.marker_timestamp if span.marker_timestamp is not None else span.last_timestamp
    return scale.x(span.first_timestamp), WIDTH if is_open else scale.x(end_ms)


def _stable_x(timeline: Timeline, scale: Scale, axis: str, holder: OpenTransaction | None) -> float | None:
    """Where the dashed line is; None if readers may read to the end, or if it is not in the range."""
    if axis != OFFSET_AXIS or holder is None:
        return None
    stable = timeline.offsets.last_stable
    return scale.x(stable) if timeline.start <= stable < timeline.end else None


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
