"""The report as a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from oncelog.bench.comparison import Row, curves, goal_rows, rows
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

_CLOSE = """\
"Close" means that some rounds meet the goal and others miss it, so that another run may well end the other way.
"""

_FIGURES = """\
Median of all rounds, and the lowest and highest round. Ratios are ratios of medians. Percentiles are shown from 100
(p99) and 1,000 (p99.9) samples in a round on.
"""


def report(results: Results, pictures: Sequence[tuple[str, str]] = ()) -> str:
    return f"# Benchmark report\n\n{body(results, pictures)}"


def body(results: Results, pictures: Sequence[tuple[str, str]] = (), level: int = 2) -> str:
    """Without a title; headings begin at `level`. `pictures` are titles and paths, relative to the page."""
    mark = "#" * level
    table = rows(results)
    parts = [_head(results)]
    if len(results.sides) > 1:
        parts += [f"{mark} Goals\n", _CLOSE, *_goal_table(goal_rows(table), results), ""]
    found = curves(results)
    if found:
        parts += [f"{mark} Growth\n", *_growth_table(results), ""]
    if pictures:
        parts += [f"{mark} Pictures\n", *(f"![{title}]({path})\n" for title, path in pictures)]
    parts.append(f"{mark} Figures\n")
    parts.append(_FIGURES)
    for title, members in groupby(table, key=lambda row: row.entry.group_title):
        parts += [f"{mark}# {title}\n", *_figure_table(list(members), results), ""]
    if results.problems:
        parts += [f"{mark} What failed\n", *(f"- {problem}" for problem in results.problems), ""]
    return "\n".join(parts).rstrip() + "\n"


def _head(results: Results) -> str:
    machine = results.machine
    lines = []
    lines.append(f"{machine['cores']} cores, {machine['memory_gb']} GB of memory, {machine['system']}, "
                 f"Python {machine['python']}; {results.taken_at}.\n")  # fmt: skip
    lines += [f"- {name}: {description}" for name, description in results.sides.items() if description]
    lines += [f"- **{remark}**" for remark in results.remarks]
    return "\n".join(lines) + "\n"


def markdown_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    made = ["| " + " | ".join(heads) + " |", "| " + " | ".join("---" for _ in heads) + " |"]
    return made + ["| " + " | ".join(line) + " |" for line in lines]


def _goal_table(members: list[Row], results: Results) -> list[str]:
    ours, other = list(results.sides)[:2]
    return markdown_table(
        ("workload", "figure", ours, other, "ratio", "by round", "rounds", "goal", ""),
        [
            (row.entry.workload.title, row.metric.label, side_text(row, ours), side_text(row, other), ratio_text(row),
             ratios_text(row), str(row.round_count), goal_text(row.goal), row_verdict(row))
            for row in members
        ],
    )  # fmt: skip


def _growth_table(results: Results) -> list[str]:
    return markdown_table(
        ("over", "figure", "side", "points", "exponent", "shape", "accepted", ""),
        [
            (
                curve.name,
                curve.metric.label,
                curve.side,
                ", ".join(f"{x:,}: {figure_text(point, curve.metric)}" for x, point in curve.points),
                exponent_text(curve),
                shape(curve),
                f"<= {curve.metric.flatness}",
                verdict(curve.is_met),
            )
            for curve in curves(results)
        ],
    )


def _figure_table(members: list[Row], results: Results) -> list[str]:
    sides = list(results.sides)
    heads = ["workload", "figure", "rounds", *(word for side in sides for word in (side, "spread"))]
    lines = []
    for row in members:
        cells = [word for side in sides for word in (side_text(row, side), spread_text(row.figures[side]))]
        ratios = [ratio_text(row)] if len(sides) > 1 else []
        lines.append([row.entry.workload.title, row.metric.label, str(row.round_count), *cells, *ratios])
    return markdown_table([*heads, *(["ratio"] if len(sides) > 1 else [])], lines)
