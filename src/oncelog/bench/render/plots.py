"""Pictures: rates as bars, latencies as distributions, growth as curves. Needs matplotlib, from the `bench` extra."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from statistics import median
from typing import Any, Final

from oncelog.bench.comparison import Curve, Row, curves, rows
from oncelog.bench.measurement import PERCENTS
from oncelog.bench.results import Entry, Results

_COLOURS: Final = ("#1f6f8b", "#c8553d", "#7a9e4d", "#8a6fb0")
_RATE_METRICS: Final = {"produce": "mb_per_s", "consume": "mb_per_s", "transactions": "transactions_per_s"}
_RATE_LABELS: Final = {"produce": "MB/s", "consume": "MB/s", "transactions": "transactions/s"}
_SHOWN_PERCENTS: Final = tuple(percent for percent in PERCENTS if 1 <= percent <= 99.9)


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(results: Results, folder: Path) -> list[tuple[str, str]]:
    """Titles and file names of the pictures that the results have something for."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # The same results give the same files, and text stays text.
    plt.rcParams.update({"svg.hashsalt": "oncelog", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                         "axes.spines.right": False})  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    made: list[tuple[str, str]] = []

    def keep(figure: Any, title: str, name: str) -> None:
        figure.tight_layout()
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)
        made.append((title, f"{name}.svg"))

    for kind in _RATE_METRICS:
        bars = [
            row for row in rows(results) if row.entry.workload.kind == kind and row.metric.name == _RATE_METRICS[kind]
        ]
        if bars:
            keep(_bars(plt, bars, list(results.sides), _RATE_LABELS[kind]), f"Rates: {kind}", f"rates-{kind}")
    for name, title, distribution in _latency_plots(results):
        entry = results.entries[name]
        keep(_distributions(plt, entry, distribution, list(results.sides)), title, f"latency-{name}")
    grouped: dict[str, list[Curve]] = {}
    for curve in curves(results):
        grouped.setdefault(curve.group, []).append(curve)
    for group, members in grouped.items():
        keep(_growth(plt, members, list(results.sides)), f"Growth over {members[0].name}", f"growth-{group}")
    return made


def _bars(plt: Any, bars: list[Row], sides: list[str], label: str) -> Any:
    figure, axes = plt.subplots(figsize=(8, 0.6 + 0.28 * len(bars) * (len(sides) + 0.4)))
    thickness = 0.8 / len(sides)
    for index, side in enumerate(sides):
        for line, row in enumerate(bars):
            point = row.figures[side]
            if point is None:
                continue
            place = line + index * thickness
            spread = [[point.median - point.low], [point.high - point.median]]
            axes.barh(place, point.median, thickness * 0.9, color=_COLOURS[index], xerr=spread, ecolor="#555555",
                      label=side if line == 0 else None, error_kw={"linewidth": 0.8})  # fmt: skip
    axes.set_yticks([line + 0.4 - thickness / 2 for line in range(len(bars))])
    axes.set_yticklabels([row.entry.workload.title for row in bars])
    axes.invert_yaxis()
    axes.set_xlabel(f"{label}, median of all rounds; lines: lowest and highest round")
    axes.legend(frameon=False)
    return figure


def _latency_plots(results: Results) -> list[tuple[str, str, str]]:
    """Workload, title, distribution."""
    found = []
    for name, entry in results.entries.items():
        if entry.workload.kind == "latency":
            found.append((name, f"End-to-end latency, {entry.workload.title}", "latency_ms"))
        elif name in ("transactions-1", "transactions-16-producers"):
            found.append((name, f"Commit latency, {entry.workload.title}", "commit_ms"))
    return found


def _distributions(plt: Any, entry: Entry, name: str, sides: list[str]) -> Any:
    figure, axes = plt.subplots(figsize=(7, 3.2))
    # Equal distances between 90, 99, 99.9 per cent.
    places = list(range(len(_SHOWN_PERCENTS)))
    for index, side in enumerate(sides):
        rounds = [one.distributions[name] for one in entry.rounds.get(side, ()) if name in one.distributions]
        if not rounds or entry.problem(side):
            continue
        for one in rounds:
            axes.plot(
                places, [one.at(percent) for percent in _SHOWN_PERCENTS], color=_COLOURS[index], alpha=0.25, lw=0.8
            )
        middle = [median(one.at(percent) for one in rounds) for percent in _SHOWN_PERCENTS]
        axes.plot(places, middle, color=_COLOURS[index], label=side, lw=1.8)
    axes.set_yscale("log")
    axes.set_xticks(places)
    axes.set_xticklabels([f"{percent:g}" for percent in _SHOWN_PERCENTS], rotation=45)
    axes.set_xlabel("percentile; thin lines are single rounds")
    axes.set_ylabel("ms")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False)
    return figure


def _growth(plt: Any, members: list[Curve], sides: list[str]) -> Any:
    metrics = list(dict.fromkeys(curve.metric for curve in members))
    figure, grid = plt.subplots(1, len(metrics), figsize=(3.2 * len(metrics), 3), squeeze=False)
    for axes, metric in zip(grid[0], metrics, strict=True):
        for curve in members:
            if curve.metric is not metric and curve.metric != metric:
                continue
            colour = _COLOURS[sides.index(curve.side)]
            axes.plot([x for x, _ in curve.points], [point.median for _, point in curve.points], "o-", color=colour,
                      label=curve.side, lw=1.5, ms=4)  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(members[0].name)
        axes.set_title(f"{metric.label}, {metric.unit}", fontsize=8)
        axes.grid(alpha=0.3)
    grid[0][0].legend(frameon=False)
    return figure
