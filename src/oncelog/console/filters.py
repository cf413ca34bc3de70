"""How templates show things, where it takes more than a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from operator import itemgetter
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup, escape

from oncelog.console.watch import wall_ms
from oncelog.core.display import count_of, show_bytes, show_duration

_HEAD_CELL: Final = re.compile(r'<th scope="col"[^>]*>(.*?)</th>', re.DOTALL)
_ROW: Final = re.compile(r"<tr\b.*?</tr>", re.DOTALL)
_CELL: Final = re.compile(r"<(th|td)\b")


def ago(time_ms: int) -> str:
    """`12.3 s ago`, or `in 5 min 7 s`."""
    passed_ms = wall_ms() - time_ms
    return f"{show_duration(passed_ms)} ago" if passed_ms >= 0 else f"in {show_duration(-passed_ms)}"


def labelled(table: Markup) -> Markup:
    """Head and body of a table whose cells know the names of their columns: narrow screens show it as a list."""
    head, end, body = str(table).partition("</thead>")
    names = _HEAD_CELL.findall(head)

    def with_labels(row: re.Match[str]) -> str:
        numbers = count()

        def with_label(cell: re.Match[str]) -> str:
            number = next(numbers)
            return f'<{cell[1]} data-label="{names[number]}"' if number < len(names) else cell[0]

        return _CELL.sub(with_label, row[0])

    # Contents are escaped by now: what looks like a tag is one of the template.
    return Markup(head + end + _ROW.sub(with_labels, body))


_DESCRIBED: Final = (
    *("transactional_id", "producer_id", "producer_epoch", "outcome", "lasted_ms", "first_offset", "last_offset"),
    *("marker_offset", "records", "bytes", "marker_epoch", "coordinator_epoch"),
)
_description: Final = itemgetter(*_DESCRIBED)


def drawn_bars(lane: Mapping[str, Any]) -> Markup:
    """The bars of a lane with their markers, as SVG. A page has hundreds: a template takes several times as long."""
    return Markup("\n").join(_drawn(bar, lane["partition"], number == 0) for number, bar in enumerate(lane["bars"]))


def _drawn(bar: Mapping[str, Any], partition: int, is_first: bool) -> Markup:
    place, name = f"{partition}-{bar['first_offset']}", bar["transactional_id"]
    # All others are numbers and words of ours: only what is told of a bar has to be escaped.
    link = f"/transactions/{quote(name, safe='')}" if name else f"#row-{place}"
    outcome, y, marker_x = bar["outcome"], bar["y"], bar["marker_x"]
    fill = ' fill="url(#stripes)"' if outcome == "open" else ""
    tick = ""
    if marker_x is not None:
        tick = f'<line class="tick" x1="{marker_x}" x2="{marker_x}" y1="{y - 2}" y2="{y + 12}"></line>'
    return Markup(
        f'<a href="{link}" tabindex="{0 if is_first else -1}" data-bar="{place}"><title>{bar_text(bar)}</title>'
        f'<rect class="bar {outcome}" x="{bar["x"]}" y="{y}" width="{bar["width"]}" height="10"{fill}></rect></a>{tick}'
    )


def bar_text(bar: Mapping[str, Any]) -> Markup:
    """What a bar of a timeline stands for, in lines. All bars are drawn again after every poll, and few are new."""
    return _bar_text(_description(bar))


@lru_cache(maxsize=8192)
def _bar_text(description: tuple[Any, ...]) -> Markup:
    bar = dict(zip(_DESCRIBED, description, strict=True))
    name = bar["transactional_id"] or f"producer {bar['producer_id']}"
    lasted = ""
    if bar["lasted_ms"] is not None:
        lasted = f" {'for' if bar['outcome'] == 'open' else 'after'} {show_duration(bar['lasted_ms'])}"
    place = f"offsets {bar['first_offset']} to {bar['last_offset']}"
    if bar["marker_offset"] is not None:
        place += f", marker at {bar['marker_offset']}"
    producer = f"producer {bar['producer_id']} epoch {bar['producer_epoch']}"
    amount = f"{count_of(bar['records'], 'record')}, {show_bytes(bar['bytes'])}, {producer}"
    lines = [f"{name}: {bar['outcome']}{lasted}", place, amount]
    if bar["marker_epoch"] is not None:
        lines.append(f"marker with epoch {bar['marker_epoch']}, coordinator epoch {bar['coordinator_epoch']}")
    return escape("\n".join(lines))
