"""How templates show things, where it takes more than a line."""

from __future__ import annotations

import re
from itertools import count
from typing import Final

from markupsafe import Markup

from oncelog.console.watch import wall_ms
from oncelog.core.display import show_duration

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
