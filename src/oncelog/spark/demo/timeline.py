"""A picture of a run: who was up when, which batches were written, and where the kills fell. Plain SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

from oncelog.spark.demo.events import Event
from oncelog.spark.demo.pipeline import GUARANTEES

WIDTH, LEFT, RIGHT, TOP = 1180, 120, 150, 68
LABEL_WIDTH, LABEL_STEP = 145, 15
LANE_HEIGHT, BAR_HEIGHT = 44, 22
QUERIES = (*GUARANTEES, "revenue")
LANES = ("driver", "executor", *QUERIES)
"""Below those of the brokers and controllers."""
COLOURS = {
    "up": "#5b7a99",
    "starting": "#c3cfdb",
    "done": "#3f9a6b",
    "skipped": "#b8c4b0",
    "failed": "#c9483f",
    "lost": "#c9483f",
    "interrupted": "#e2a33b",
}
LEGEND = (
    ("starting", "starting"),
    ("done", "batch written"),
    ("interrupted", "batch cut off by a kill"),
    ("failed", "batch failed or lost"),
    ("skipped", "batch found committed, skipped"),
)


@dataclass(frozen=True, slots=True)
class Bar:
    lane: str
    start_s: float
    end_s: float
    kind: str
    title: str


def draw(events: Sequence[Event], notes: Mapping[str, str] | None = None) -> str:
    """The whole picture. Times are seconds since the first event; `notes` stand at the right end of their lanes."""
    if not events:
        return '<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"/>'
    first_s = min(event.at_s for event in events)
    last_s = max(event.at_s for event in events)
    scale = (WIDTH - LEFT - RIGHT) / max(last_s - first_s, 1.0)
    lanes = lanes_of(events)
    height = TOP + LANE_HEIGHT * len(lanes) + 60

    def x(at_s: float) -> float:
        return LEFT + (at_s - first_s) * scale

    middles = {lane: TOP + LANE_HEIGHT * (number + 0.5) for number, lane in enumerate(lanes)}
    bottom = TOP + LANE_HEIGHT * len(lanes)
    parts = [_header(height), *_grid(last_s - first_s, scale, bottom), *_lanes(middles)]
    for bar in bars(events):
        parts.append(_rectangle(bar, x(bar.start_s), x(bar.end_s), middles[bar.lane]))
    kills = [event for event in events if event.what == "killed"]
    for event, row in zip(kills, _label_rows([x(event.at_s) for event in kills]), strict=True):
        parts.append(_kill(event, x(event.at_s), row, middles[event.lane], bottom))
    parts += [*_notes(notes or {}, middles), *_legend(height), "</svg>"]
    return "\n".join(parts)


def lanes_of(events: Sequence[Event]) -> list[str]:
    nodes = dict.fromkeys(event.lane for event in events if event.lane not in LANES)
    return [*nodes, *LANES]


def bars(events: Sequence[Event]) -> list[Bar]:
    """Spans from pairs of events; a span that a kill cut off ends at the kill."""
    found: list[Bar] = []
    open_since: dict[str, Event] = {}
    for event in events:
        begins = event.what in ("up", "begin")
        opened = open_since.pop(event.lane, None)
        if opened is not None:
            found.append(_span(opened, event, interrupted=begins and event.what == "begin"))
        if begins:
            open_since[event.lane] = event
        if event.lane == "driver" and event.what in ("killed", "down"):
            for lane in [lane for lane in open_since if lane in QUERIES]:
                found.append(_span(open_since.pop(lane), event, interrupted=True))
    last = events[-1]
    found += [_span(opened, last, interrupted=False) for opened in open_since.values() if opened.what == "up"]
    return [part for bar in found for part in _with_start(bar, events)]


def _with_start(bar: Bar, events: Sequence[Event]) -> list[Bar]:
    """A driver is of no use before its first batch."""
    if bar.lane != "driver" or bar.kind != "up":
        return [bar]
    batches = (event.at_s for event in events if event.lane in QUERIES and event.what == "begin")
    first_s = next((at_s for at_s in batches if bar.start_s <= at_s <= bar.end_s), bar.end_s)
    start = replace(bar, end_s=first_s, kind="starting", title=f"driver: starting, {first_s - bar.start_s:.1f} s")
    return [start, replace(bar, start_s=first_s)]


def _span(opened: Event, closed: Event, *, interrupted: bool) -> Bar:
    if opened.what == "up":
        kind = "up"
    else:
        kind = "interrupted" if interrupted else closed.what
    seconds = closed.at_s - opened.at_s
    title = f"{opened.lane}" + (f", batch {opened.batch}" if opened.batch >= 0 else "") + f": {kind}, {seconds:.1f} s"
    if closed.rows:
        title += f", {closed.rows} records"
    return Bar(opened.lane, opened.at_s, closed.at_s, kind, title)


def _header(height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="Timeline of the run">'
        f'<rect width="{WIDTH}" height="{height}" fill="#fbfaf7"/>'
    )


def _grid(seconds: float, scale: float, bottom: float) -> list[str]:
    step = next(s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600) if seconds / s <= 14 or s == 600)
    lines = []
    for tick in range(0, int(seconds) + 1, step):
        at = LEFT + tick * scale
        lines.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{bottom}" stroke="#e3e0d8"/>')
        lines.append(f'<text x="{at:.1f}" y="{TOP - 10}" text-anchor="middle" fill="#777">{tick} s</text>')
    return lines


def _lanes(middles: Mapping[str, float]) -> list[str]:
    return [
        f'<text x="{LEFT - 12}" y="{middle + 4:.1f}" text-anchor="end" fill="#333">{escape(lane)}</text>'
        for lane, middle in middles.items()
    ]


def _rectangle(bar: Bar, start: float, end: float, middle: float) -> str:
    top = middle - BAR_HEIGHT / 2
    return (
        f'<rect x="{start:.1f}" y="{top:.1f}" width="{max(end - start, 1.5):.1f}" height="{BAR_HEIGHT}" rx="2" '
        f'fill="{COLOURS.get(bar.kind, "#999")}"><title>{escape(bar.title)}</title></rect>'
    )


def _label_rows(places: Sequence[float]) -> list[int]:
    """Labels that would touch stand above each other."""
    rows: list[int] = []
    for i, at in enumerate(places):
        close = i > 0 and at - places[i - 1] < LABEL_WIDTH
        rows.append((rows[i - 1] + 1) % 2 if close else 0)
    return rows


def _kill(event: Event, at: float, row: int, middle: float, bottom: float) -> str:
    above = TOP - 28 - row * LABEL_STEP
    return (
        f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{bottom}" stroke="#c9483f" stroke-dasharray="4 3"/>'
        f'<text x="{at:.1f}" y="{above}" text-anchor="middle" fill="#c9483f">kill -9 {escape(event.lane)}</text>'
        f'<circle cx="{at:.1f}" cy="{middle:.1f}" r="6" fill="#c9483f"/>'
    )


def _notes(notes: Mapping[str, str], middles: Mapping[str, float]) -> list[str]:
    at = WIDTH - RIGHT + 12
    return [
        f'<text x="{at}" y="{middles[lane] + 4:.1f}" fill="#333" font-weight="600">{escape(text)}</text>'
        for lane, text in notes.items()
    ]


def _legend(height: int) -> list[str]:
    parts = []
    for i, (kind, text) in enumerate(LEGEND):
        at = LEFT + i * 205
        parts.append(f'<rect x="{at}" y="{height - 34}" width="14" height="14" rx="2" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{at + 20}" y="{height - 22}" fill="#333">{escape(text)}</text>')
    return parts
