"""Transactions of a partition drawn over its offsets.

One row for each producer: it has one transaction at a time, so its spans never overlap. A cell stands for a range of
offsets and shows the most important thing in it. The vertical line is the last stable offset: what is right of it is
held back from read_committed readers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from oncelog.cli.output import TEXT_COLUMNS_MIN, count_of, show_duration, show_time
from oncelog.cli.terminal import shortened
from oncelog.inspection.transactions import PartitionHistory
from oncelog.monitoring.transaction_spans import TransactionOutcome, TransactionSpan

WIDTH_MIN: Final = 20
LABEL_CHARS_MAX: Final = 36
"""Beside the picture, on a terminal. A pipe gets names whole."""

Cell = tuple[int, str, str]
"""Rank, glyph, style. A higher rank hides a lower one."""
EMPTY: Final[Cell] = (0, "·", "dim")
_DATA: Final[dict[TransactionOutcome, Cell]] = {
    TransactionOutcome.COMMITTED: (1, "━", "green"),
    TransactionOutcome.ABORTED: (2, "╌", "red"),
    TransactionOutcome.OPEN: (5, "━", "bold yellow"),
}
_ENDS: Final[dict[TransactionOutcome, Cell]] = {
    TransactionOutcome.COMMITTED: (3, "●", "green"),
    TransactionOutcome.ABORTED: (4, "✕", "bold red"),
    TransactionOutcome.OPEN: (6, "▶", "bold yellow"),
}
_LSO_CELL: Final[Cell] = (0, "│", "cyan")
_ASCII: Final = str.maketrans({"━": "=", "╌": "x", "●": "C", "✕": "A", "▶": ">", "│": "|", "·": "."})


class Scale:
    """From offsets to columns."""

    def __init__(self, start: int, end: int, width: int) -> None:
        self.start = start
        self.offsets = max(end - start, 1)
        self.width = min(width, self.offsets) if self.offsets >= WIDTH_MIN else width

    def column(self, offset: int) -> int:
        place = (offset - self.start) * self.width // self.offsets
        return min(max(place, 0), self.width - 1)

    def last_column(self, end: int) -> int:
        """The last column that belongs to offsets below `end`."""
        return min(max(((end - self.start) * self.width - 1) // self.offsets, 0), self.width - 1)


def draw(console: Console, history: PartitionHistory, names: dict[int, str], *, limit: int) -> None:
    """The picture, then the last `limit` transactions one by one."""
    console.print(_headline(history), highlight=False)
    if not history.spans:
        console.print("  no transactions", style="dim")
        return
    by_producer: dict[int, list[TransactionSpan]] = {}
    for span in history.spans:
        by_producer.setdefault(span.producer_id, []).append(span)
    label_width = LABEL_CHARS_MAX if console.is_terminal else sys.maxsize
    labels = {number: shortened(_label(number, names), label_width) for number in by_producer}
    margin = max(map(len, labels.values()))
    scale = Scale(history.start_offset, history.end_offset, max(console.width - margin - 4, WIDTH_MIN))
    ascii_only = not (console.encoding or "").lower().startswith("utf")
    ruler = f"{history.start_offset}".ljust(scale.width - len(str(history.end_offset))) + str(history.end_offset)
    console.print(Text("  " + " " * margin + "  " + ruler, style="dim"), soft_wrap=True)
    lso = history.last_stable_offset
    for number, spans in by_producer.items():
        cells = _cells(spans, scale, lso if lso < history.end_offset else None)
        line = Text(f"  {labels[number]:<{margin}}  ")
        for _, glyph, style in cells:
            line.append(glyph.translate(_ASCII) if ascii_only else glyph, style=style)
        console.print(line, soft_wrap=True)
    legend = "━● committed   ╌✕ aborted   ━▶ open   │ last stable offset"
    console.print(Text("  " + (legend.translate(_ASCII) if ascii_only else legend), style="dim"), soft_wrap=True)
    _list(console, history.spans, names, limit)


def _headline(history: PartitionHistory) -> Text:
    line = Text(str(history.partition), style="bold")
    lso = history.last_stable_offset
    line.append(f"  offsets {history.start_offset} to {history.end_offset}", style="not bold")
    line.append(f"  last stable offset {lso}", style="not bold cyan")
    if lso < history.end_offset:
        line.append(f": {count_of(history.end_offset - lso, 'offset')} behind it", style="not bold yellow")
    return line


def _label(producer_id: int, names: dict[int, str]) -> str:
    name = names.get(producer_id)
    return f"{name} ({producer_id})" if name else f"producer {producer_id}"


def _cells(spans: Sequence[TransactionSpan], scale: Scale, lso: int | None) -> list[Cell]:
    cells = [EMPTY] * scale.width
    if lso is not None:
        cells[scale.column(lso)] = _LSO_CELL
    for span in spans:
        first, last = scale.column(span.first_offset), scale.last_column(span.end_offset)
        for column in range(first, last + 1):
            cells[column] = max(cells[column], _DATA[span.outcome])
        cells[last] = max(cells[last], _ENDS[span.outcome])
    return cells


def _list(console: Console, spans: Sequence[TransactionSpan], names: dict[int, str], limit: int) -> None:
    shown = spans[-limit:] if limit else spans
    if len(shown) < len(spans):
        console.print(f"  the last {len(shown)} of {count_of(len(spans), 'transaction')}:", style="dim")
    width = console.width - 2 if console.is_terminal else sys.maxsize
    for span in shown:
        for line in _span_lines(span, _label(span.producer_id, names), width):
            console.print(Text("  " + line, style=_DATA[span.outcome][2]), soft_wrap=True)


def _span_lines(span: TransactionSpan, label: str, width: int) -> list[str]:
    """One line if it fits, else two. Nothing but the name of the producer is shortened."""
    end = "" if span.marker_offset is None else f" marker {span.marker_offset}"
    lasted = (span.marker_timestamp or span.last_timestamp) - span.first_timestamp
    began = " (began before the log)" if span.began_before_log else ""
    before = f"{span.first_offset}..{span.last_offset}{end}  {span.outcome.value}  "
    behind = (
        f" epoch {span.producer_epoch}  {count_of(span.records, 'record')}  {show_time(span.first_timestamp)}  "
        f"{show_duration(max(lasted, 0))}{began}"
    )
    if len(before) + len(label) + len(behind) <= width:
        return [before + label + behind]
    return [before + shortened(label, max(width - len(before), TEXT_COLUMNS_MIN)), " " + behind]
