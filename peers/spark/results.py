"""Numbers of both sides, and what may be said about them: no ratio when a side failed."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from peers.spark.queries import median

HEADINGS = ("what", "ours", "theirs", "ours / theirs", "goal", "met")


@dataclass(slots=True)
class Result:
    """All measured rounds of one case."""

    name: str
    unit: str
    ours_name: str
    theirs_name: str
    goal: float | None
    higher_is_better: bool
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """None unless both sides finished every round."""
        if self.problems or not self.ours or len(self.ours) != len(self.theirs):
            return None
        return median(self.ours) / median(self.theirs)

    @property
    def met(self) -> bool | None:
        if self.ratio is None or self.goal is None:
            return None
        return self.ratio >= self.goal if self.higher_is_better else self.ratio <= self.goal

    def row(self) -> list[str]:
        bound = "at least" if self.higher_is_better else "at most"
        return [
            self.name,
            f"{self._cell(self.ours)} ({self.ours_name})",
            f"{self._cell(self.theirs)} ({self.theirs_name})",
            "-" if self.ratio is None else f"{self.ratio:.2f}x",
            "" if self.goal is None else f"{bound} {self.goal:.2f}x",
            {None: "-", True: "yes", False: "NO"}[self.met],
        ]

    def _cell(self, values: list[float]) -> str:
        if not values:
            return "failed" if self.problems else "not measured"
        spread = f"{min(values):,.0f} to {max(values):,.0f}"
        return f"{median(values):,.0f} {self.unit}" + (f", {spread}" if len(values) > 1 else "")


def show(results: list[Result], console: Console) -> None:
    table = Table(title="medians of all measured rounds, with the lowest and the highest")
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if i == 0 else "right")
    for result in results:
        table.add_row(*result.row())
    console.print(table)
    for result in results:
        for problem in result.problems:
            console.print(f"{result.name}: {problem}", style="red", markup=False)


def save(results: list[Result], settings: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    numbers, page = folder / "spark.json", folder / "spark.md"
    about = {**settings, **machine()}
    measured = [{**asdict(result), "ratio": result.ratio, "met": result.met} for result in results]
    numbers.write_text(json.dumps({"settings": about, "results": measured}, indent=2) + "\n")
    page.write_text(_markdown(results, about))
    return numbers, page


def machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}


def _markdown(results: list[Result], about: dict[str, Any]) -> str:
    lines = ["# The Spark pipeline and Spark's own Kafka connector", ""]
    lines += ["Medians of all measured rounds, with the lowest and the highest.", ""]
    lines += [f"| {' | '.join(HEADINGS)} |", "| --- " * len(HEADINGS) + "|"]
    lines += [f"| {' | '.join(result.row())} |" for result in results]
    lines += ["", *(f"- {result.name}: {problem}" for result in results for problem in result.problems)]
    lines += ["", "Settings: " + ", ".join(f"{key} {value}" for key, value in about.items()) + ".", ""]
    return "\n".join(lines)
