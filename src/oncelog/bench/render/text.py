"""Numbers, goals and verdicts in words, the same in the terminal and on the page."""

from __future__ import annotations

from oncelog.bench.comparison import Curve, Figure, Row
from oncelog.bench.metric import Metric
from oncelog.bench.workload import Goal

NO_FIGURE = "-"


def number(value: float) -> str:
    """Three digits that matter."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def with_unit(value: float, metric: Metric) -> str:
    unit = metric.unit if metric.unit.startswith("/") else f" {metric.unit}"
    return number(value) + unit


def figure_text(figure: Figure | None, metric: Metric) -> str:
    return NO_FIGURE if figure is None else with_unit(figure.median, metric)


def spread_text(figure: Figure | None) -> str:
    return NO_FIGURE if figure is None else f"{number(figure.low)}..{number(figure.high)}"


def ratio_text(row: Row) -> str:
    return NO_FIGURE if row.ratio is None else f"{row.ratio:.2f}x"


def ratios_text(row: Row) -> str:
    """The lowest and the highest of all rounds."""
    return f"{min(row.ratios):.2f}..{max(row.ratios):.2f}" if row.ratios else NO_FIGURE


def goal_text(goal: Goal | None) -> str:
    if goal is None:
        return ""
    sign, bound = (">=", goal.at_least) if goal.at_least is not None else ("<=", goal.at_most)
    return f"{sign} {bound:g}{'x' if goal.of == 'ratio' else ''}"


def verdict(is_met: bool | None, *, has_goal: bool = True) -> str:
    if not has_goal:
        return ""
    return {True: "met", False: "missed", None: "no figure"}[is_met]


def row_verdict(row: Row) -> str:
    return verdict(row.is_met, has_goal=row.goal is not None) + (", close" if row.is_close else "")


def side_text(row: Row, side: str) -> str:
    if row.entry.problem(side):
        return "FAILED"
    if side in row.entry.skipped:
        return "not ours"
    return figure_text(row.figures[side], row.metric)


def exponent_text(curve: Curve) -> str:
    return NO_FIGURE if curve.exponent is None else f"{curve.exponent:.2f}"


def shape(curve: Curve) -> str:
    """The growth of a curve in a word."""
    exponent = curve.exponent
    if exponent is None:
        return NO_FIGURE
    if exponent <= 0.15:
        return "flat"
    return "linear or less" if exponent <= 1.15 else "more than linear"
