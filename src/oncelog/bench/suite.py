"""Running a selection of the catalogue and leaving its report: what `oncelog bench suite` and `make bench` share."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from oncelog.bench import catalogue, results, rounds
from oncelog.bench.catalogue import Group
from oncelog.bench.drive import Drive, drive
from oncelog.bench.render import files, plots, terminal
from oncelog.bench.results import Results
from oncelog.bench.side import Side

DEFAULT_FOLDER: Final = Path("bench-results")
QUICK_FOLDER: Final = Path("bench-results/quick")
NO_PLOTS: Final = "there are no pictures: pip install 'oncelog[bench]' brings matplotlib"


@dataclass(frozen=True, slots=True)
class Choice:
    """What of the catalogue is run."""

    is_quick: bool = False
    only: tuple[str, ...] = ()
    rounds: int | None = None

    def groups(self) -> tuple[Group, ...]:
        """Raises KeyError with a name that does not exist."""
        everything = catalogue.quick() if self.is_quick else catalogue.FULL
        chosen = catalogue.select(everything, self.only) if self.only else everything
        return tuple(replace(group, rounds=self.rounds) for group in chosen) if self.rounds else chosen


def split_names(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def run(
    choice: Choice,
    sides: Sequence[Side],
    folder: Path,
    progress: rounds.Progress,
    remarks: Sequence[str] = (),
    do: Drive = drive,
) -> Results:
    """Runs, merges with what the folder holds from other parts, writes the report after each group."""
    groups = choice.groups()
    started_s = time.monotonic()

    def timed(text: str) -> None:
        seconds = int(time.monotonic() - started_s)
        progress(f"{seconds // 60:2d}:{seconds % 60:02d}  {text}")

    merged = Results.begin(sides)
    with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as data:
        for group in groups:
            new = rounds.run([group], sides, Path(data), timed, do)
            new.remarks = list(remarks)
            merged = _merge(new, folder, progress)
            results.save(merged, folder)
    return merged


def _merge(new: Results, folder: Path, progress: rounds.Progress) -> Results:
    older = results.load(folder)
    if older is None:
        return new
    if older.sides != new.sides:
        progress(f"{folder} holds results of other sides; they are kept as {results.set_aside(folder)}")
        return new
    return _in_order(new.merged_into(older))


def _in_order(merged: Results) -> Results:
    """As the catalogue has them, in whatever order they were measured."""
    names = [workload.name for group in catalogue.FULL for workload in group.workloads]
    places = {name: place for place, name in enumerate(names)}
    ordered = sorted(merged.entries.items(), key=lambda item: places.get(item[0], len(places)))
    return replace(merged, entries=dict(ordered))


def report(found: Results, folder: Path, progress: rounds.Progress) -> int:
    """Shows and writes it. The exit code: 1 if a side failed."""
    terminal.show(found)
    for path in files.write(found, folder)[:2]:
        progress(f"written: {path}")
    if not plots.available():
        progress(NO_PLOTS)
    return 1 if found.problems else 0
