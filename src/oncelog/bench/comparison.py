"""Medians, spread, ratios, goals and growth, computed from results.

The first side is the one whose goals are looked at. A ratio exists only when every round of both sides can be trusted.

Growth: between the two largest x of a curve, cost is taken as a power of x. An exponent near 0 is flat, near 1 is
linear; each metric has a limit. Constant parts (starting an interpreter) only make it smaller, and problems show at the
large end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from statistics import median

from oncelog.bench.metric import METRICS, Metric
from oncelog.bench.results import Entry, Results
from oncelog.bench.workload import Goal


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of one workload on one side, over all rounds."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.rounds)

    @property
    def low(self) -> float:
        return min(self.rounds)

    @property
    def high(self) -> float:
        return max(self.rounds)


@dataclass(frozen=True, slots=True)
class Row:
    entry: Entry
    metric: Metric
    figures: dict[str, Figure | None]
    """By side; None where it failed or was not measured."""
    goal: Goal | None
    ratio: float | None
    """First side over the second. None with one side, or when a side cannot be trusted."""
    ratios: tuple[float, ...] = ()
    """Round by round: each side's rounds stand beside those of the other in time."""

    @property
    def is_met(self) -> bool | None:
        """None where there is no goal or nothing to judge."""
        if self.goal is None:
            return None
        if self.goal.of == "ratio":
            return None if self.ratio is None else self.goal.is_met(self.ratio)
        first = self._first
        return None if first is None else self.goal.is_met(first.median)

    @property
    def is_close(self) -> bool:
        """Whether some rounds meet the goal and others miss it: another run may end the other way."""
        if self.goal is None:
            return False
        first = self._first
        judged = self.ratios if self.goal.of == "ratio" else () if first is None else first.rounds
        return len({self.goal.is_met(value) for value in judged}) > 1

    @property
    def round_count(self) -> int:
        return max((len(found.rounds) for found in self.figures.values() if found is not None), default=0)

    @property
    def _first(self) -> Figure | None:
        return next(iter(self.figures.values()), None)


def figure(entry: Entry, side: str, metric: Metric) -> Figure | None:
    rounds = entry.rounds.get(side, [])
    if not rounds or entry.problem(side):
        return None
    values = [measured.figures[metric.name] for measured in rounds if metric.name in measured.figures]
    if len(values) != len(rounds):
        return None
    return Figure(tuple(values))


def rows(results: Results) -> list[Row]:
    return [
        row(results, entry, metric) for entry in results.entries.values() for metric in METRICS[entry.workload.kind]
    ]


def row(results: Results, entry: Entry, metric: Metric) -> Row:
    sides = list(results.sides)
    figures = {side: figure(entry, side, metric) for side in sides}
    goal = next((goal for goal in entry.workload.goals if goal.metric == metric.name), None)
    if len(sides) < 2 or not metric.has_ratio:
        return Row(entry, metric, figures, goal, None)
    ours, other = figures[sides[0]], figures[sides[1]]
    # A failure anywhere in the workload voids all its ratios, whichever figure it touched; so does a missing round.
    if ours is None or other is None or len(ours.rounds) != len(other.rounds) or min(other.rounds) <= 0:
        return Row(entry, metric, figures, goal, None)
    by_round = tuple(mine / its for mine, its in zip(ours.rounds, other.rounds, strict=True))
    return Row(entry, metric, figures, goal, ours.median / other.median, by_round)


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one side along x."""

    group: str
    name: str
    side: str
    metric: Metric
    points: tuple[tuple[int, Figure], ...]
    is_whole: bool = True
    """Whether every point was measured. Problems show at the largest, so without it there is no verdict."""

    @property
    def exponent(self) -> float | None:
        """The exponent of the cost over the last two points."""
        if len(self.points) < 2 or not self.is_whole:
            return None
        (low_x, low), (high_x, high) = self.points[-2:]
        if low.median <= 0 or high.median <= 0:
            return None
        return log(high.median / low.median) / log(high_x / low_x)

    @property
    def is_met(self) -> bool | None:
        if self.exponent is None or self.metric.flatness is None:
            return None
        return self.exponent <= self.metric.flatness


def curves(results: Results) -> list[Curve]:
    found = []
    for group, entries in _curve_entries(results).items():
        for metric in METRICS[entries[0].workload.kind]:
            if metric.flatness is None:
                continue
            for side in results.sides:
                points = [(entry.workload.x, figure(entry, side, metric)) for entry in entries]
                whole = tuple((x, point) for x, point in points if point is not None)
                if whole:
                    is_whole = len(whole) == len(points)
                    found.append(Curve(group, entries[0].workload.curve, side, metric, whole, is_whole))
    return found


def _curve_entries(results: Results) -> dict[str, list[Entry]]:
    grouped: dict[str, list[Entry]] = {}
    for entry in results.entries.values():
        if entry.workload.curve:
            grouped.setdefault(entry.group, []).append(entry)
    return {group: sorted(entries, key=lambda entry: entry.workload.x) for group, entries in grouped.items()}


def goal_rows(table: Sequence[Row]) -> list[Row]:
    return [entry for entry in table if entry.goal is not None]
