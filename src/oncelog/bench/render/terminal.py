"""The tables in a terminal: figures by group, goals last, so that they stand above the prompt."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.table import Table

from oncelog.bench.comparison import Curve, Row, curves, goal_rows, rows
from oncelog.bench.render.text import (
    exponent_text,
    figure_text,
    goal_text,
    ratio_text,
    ratios_text,
    row_verdict,
    shape,
    side_text,
    spread_text,
    verdict,
)
from oncelog.bench.results import Results

_STYLES = {"met": "green", "met, close": "yellow", "missed, close": "yellow", "missed": "yellow", "no figure": "red"}


def show(results: Results, console: Console | None = None) -> None:
    console = console or Console(width=None if Console().is_terminal else 140)
    table = rows(results)
    for title, members in groupby(table, key=lambda row: row.entry.group_title):
        console.print(_figures(title, list(members), results))
    found = curves(results)
    if found:
        console.print(_growth(found))
    if len(results.sides) > 1 and goal_rows(table):
        console.print(_goals(goal_rows(table), results))
    for remark in results.remarks:
        console.print(remark, style="bold")
    for problem in results.problems:
        console.print(f"FAILED: {problem}", style="bold red", highlight=False)


def _figures(title: str, members: list[Row], results: Results) -> Table:
    table = Table(title=f"{title}: median (lowest..highest)", title_justify="left")
    table.add_column("workload")
    table.add_column("figure")
    sides = list(results.sides)
    for side in sides:
        table.add_column(side, justify="right")
    if len(sides) > 1:
        table.add_column("ratio", justify="right")
    previous = ""
    for row in members:
        name = row.entry.workload.title
        cells = []
        for side in sides:
            text = side_text(row, side)
            spread = spread_text(row.figures[side])
            cells.append(text if row.figures[side] is None else f"{text} ({spread})")
        ratios = [ratio_text(row)] if len(sides) > 1 else []
        table.add_row("" if name == previous else name, row.metric.label, *cells, *ratios)
        previous = name
    return table


def _goals(members: list[Row], results: Results) -> Table:
    ours, other = list(results.sides)[:2]
    table = Table(title=f"Goals: {ours} / {other}", title_justify="left")
    for name in ("workload", "figure", ours, other, "ratio", "by round", "goal", ""):
        table.add_column(name, justify="left" if name in ("workload", "figure", "") else "right")
    for row in members:
        word = row_verdict(row)
        figures = (side_text(row, ours), side_text(row, other), ratio_text(row), ratios_text(row))
        styled = f"[{_STYLES[word]}]{word}[/]"
        table.add_row(row.entry.workload.title, row.metric.label, *figures, goal_text(row.goal), styled)
    return table


def _growth(found: list[Curve]) -> Table:
    table = Table(
        title="Growth: cost is x to the power of the exponent, over the last two points", title_justify="left"
    )
    for name in ("over", "figure", "side", "at the smallest", "at the largest", "exponent", "shape", "accepted", ""):
        table.add_column(name)
    for curve in found:
        word = verdict(curve.is_met)
        first, last = curve.points[0][1], curve.points[-1][1]
        table.add_row(curve.name, curve.metric.label, curve.side, figure_text(first, curve.metric),
                      figure_text(last, curve.metric), exponent_text(curve), shape(curve),
                      f"<= {curve.metric.flatness}", f"[{_STYLES[word]}]{word}[/]")  # fmt: skip
    return table
