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
from oncelog.bench.results import Entry, Results
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
    settings: tuple[tuple[str, str], ...] = ()
    """Settings of the client, for all workloads."""
    catalogue: tuple[Group, ...] = catalogue.FULL

    @property
    def folder(self) -> Path:
        """The default folder of the report: a quick run does not replace the results of a full one."""
        return QUICK_FOLDER if self.is_quick else DEFAULT_FOLDER

    def groups(self) -> tuple[Group, ...]:
        """Raises KeyError with a name that does not exist."""
        everything = catalogue.quick() if self.is_quick else self.catalogue
        chosen = catalogue.select(everything, self.only) if self.only else everything
        return tuple(map(self._with_settings, chosen))

    def _with_settings(self, group: Group) -> Group:
        changed = group.only(
            replace(workload, settings=workload.settings + self.settings) for workload in group.workloads
        )
        return replace(changed, rounds=self.rounds or group.rounds)


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
    """Runs, merges with what the folder holds from other parts, saves after each workload, reports after each group.

    Interrupted, it leaves out the workload that was not finished, and its results say so by their exit code.
    """
    groups = choice.groups()
    started_s = time.monotonic()

    def timed(text: str) -> None:
        seconds = int(time.monotonic() - started_s)
        progress(f"{seconds // 60:2d}:{seconds % 60:02d}  {text}")

    merged = Results.begin(sides)
    merged.remarks += remarks
    with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as data:
        keeper = _Keeper(merged, folder, progress, choice.catalogue)
        for group in groups:
            interruption = rounds.run([group], sides, Path(data), timed, do, keeper.keep).interruption
            if interruption:
                progress("interrupted: the workload that was not finished is left out")
                return replace(keeper.kept, interruption=interruption)
            files.write(keeper.kept, folder)
    return keeper.kept


class _Keeper:
    """Puts what was measured in this run into the results of the folder, workload by workload."""

    def __init__(
        self, new: Results, folder: Path, progress: rounds.Progress, order: Iterable[Group] = catalogue.FULL
    ) -> None:
        self._new = new
        self._order = tuple(order)
        self._folder = folder
        self._progress = progress
        self.kept = new

    def keep(self, entry: Entry) -> None:
        # All entries of a run have one moment, whichever group they belong to.
        entry.taken_at = self._new.taken_at
        self._new.entries[entry.workload.name] = entry
        self.kept = self._merged()
        results.save(self.kept, self._folder)

    def _merged(self) -> Results:
        older = results.load(self._folder)
        if older is None:
            return self._new
        if not self._new.fits(older):
            kept = results.set_aside(self._folder, older)
            self._progress(f"{self._folder} holds results of other sides or another machine; they are kept as {kept}")
            return self._new
        return _in_order(self._new.merged_into(older), self._order)


def _in_order(merged: Results, groups: Iterable[Group]) -> Results:
    """As the catalogue has them, in whatever order they were measured."""
    names = [workload.name for group in groups for workload in group.workloads]
    places = {name: place for place, name in enumerate(names)}
    ordered = sorted(merged.entries.items(), key=lambda item: places.get(item[0], len(places)))
    return replace(merged, entries=dict(ordered))


def report(found: Results, folder: Path, progress: rounds.Progress) -> int:
    """Shows and writes it. The exit code: 1 if a side failed, 130 or 143 if it was interrupted."""
    if not found.entries:
        progress("nothing was measured")
        return found.exit_code
    terminal.show(found)
    for path in files.write(found, folder)[:2]:
        progress(f"written: {path}")
    if not plots.available():
        progress(NO_PLOTS)
    return found.exit_code
