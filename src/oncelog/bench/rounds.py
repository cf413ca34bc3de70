"""Runs groups of workloads on the sides, in turn, and keeps every round.

For each workload both sides prepare, then rounds alternate between them, and the side that begins alternates too, so
that other load on the machine affects both alike. A side that failed is not run again. An interrupted run keeps its
finished rounds.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from oncelog.bench.catalogue import Group
from oncelog.bench.cells import CELLS, Bench, Cell
from oncelog.bench.drive import Drive, PreparationError, drive
from oncelog.bench.interruption import INTERRUPTIONS, exit_code
from oncelog.bench.measurement import Measurement
from oncelog.bench.results import Entry, Results
from oncelog.bench.side import Side
from oncelog.bench.workload import Workload

INTERRUPTED: Final = "INTERRUPTED: the last workload has only the rounds that were finished, not read back."
Progress = Callable[[str], None]
Finished = Callable[[Entry], None]
"""Called with each workload that has completed all its rounds."""


class GroupRun:
    """One group on all sides. Brokers that are started for it are stopped with it, and their folders removed."""

    def __init__(
        self,
        group: Group,
        sides: Sequence[Side],
        folder: Path,
        progress: Progress,
        do: Drive = drive,
        finished: Finished = lambda _: None,
    ) -> None:
        self._group = group
        self._folder = folder / group.name
        self._progress = progress
        self._finished = finished
        able = [side.variant(group.variant) for side in sides]
        self._benches = [Bench(side, self._folder, do) for side in able if side.is_ours or not group.variant]

    def run(self, results: Results) -> None:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            for bench in self._benches:
                stack.callback(bench.close)
            for workload in self._group.workloads:
                self._run_workload(workload, results)
                self._finished(results.entries[workload.name])

    def _run_workload(self, workload: Workload, results: Results) -> None:
        kind = CELLS[workload.kind]
        entry = Entry(self._group.name, self._group.title, workload, taken_at=results.taken_at)
        results.entries[workload.name] = entry
        benches = []
        for bench in self._benches:
            if kind.needs_ownership and not bench.side.is_ours:
                entry.skipped[bench.side.name] = "needs a broker that was started here"
                self._progress(f"{workload.name}: not measured on {bench.side.name}, which was not started here")
            else:
                benches.append(bench)
        cells = {bench.side.name: kind(bench, workload) for bench in benches}
        try:
            self._prepare(cells, entry)
            for number in range(-self._group.warm_ups, self._group.rounds):
                self._round(number, cells, entry)
            self._verify(cells, entry)
        finally:
            self._close(cells, entry)

    def _prepare(self, cells: dict[str, Cell], entry: Entry) -> None:
        for name, cell in cells.items():
            self._progress(f"{entry.workload.name}: preparing {name}")
            self._keep(entry, name, _guarded(cell.prepare))

    def _round(self, number: int, cells: dict[str, Cell], entry: Entry) -> None:
        is_warm_up = number < 0
        names = list(cells) if number % 2 == 0 else list(reversed(cells))
        what = "warm-up" if is_warm_up else f"round {number + 1} of {self._group.rounds}"
        for name in names:
            if entry.problem(name):
                continue
            cells[name].is_last_round = number == self._group.rounds - 1
            measurement = _guarded(cells[name].measure)
            shown = measurement.problem if measurement is not None else ""
            self._progress(f"{entry.workload.name}: {what} on {name}{': ' + shown if shown else ''}")
            if not is_warm_up or shown:
                self._keep(entry, name, measurement)

    def _verify(self, cells: dict[str, Cell], entry: Entry) -> None:
        for name, cell in cells.items():
            found = None if entry.problem(name) else _guarded(cell.verify)
            if found is not None and found.problem:
                self._keep(entry, name, Measurement.failed(f"verification: {found.problem} {found.note}".strip()))

    def _close(self, cells: dict[str, Cell], entry: Entry) -> None:
        for name, cell in cells.items():
            self._keep(entry, name, _guarded(cell.close))

    def _keep(self, entry: Entry, name: str, measurement: Measurement | None) -> None:
        if measurement is not None:
            entry.rounds.setdefault(name, []).append(measurement)


def _guarded(step: Callable[[], Measurement | None]) -> Measurement | None:
    """An exception of one side becomes a failed measurement and does not affect the other side."""
    try:
        return step()
    except (PreparationError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        return Measurement.failed(str(error).strip()[-500:])


def run(
    groups: Sequence[Group],
    sides: Sequence[Side],
    folder: Path,
    progress: Progress,
    do: Drive = drive,
    finished: Finished = lambda _: None,
) -> Results:
    results = Results.begin(sides)
    try:
        for group in groups:
            GroupRun(group, sides, folder, progress, do, finished).run(results)
    except INTERRUPTIONS as interruption:
        results.interruption = exit_code(interruption)
        results.remarks.append(INTERRUPTED)
        for entry in results.entries.values():
            _even_out(entry)
    return results


def _even_out(entry: Entry) -> None:
    """Leaves out the round that only some of the sides have finished."""
    whole = [kept for side, kept in entry.rounds.items() if not entry.problem(side)]
    count = min(map(len, whole), default=0)
    for kept in whole:
        del kept[count:]
