"""Results as they are kept: every round of every workload on every side, as JSON.

Parts run on their own are merged, and each keeps the moment of its run. A file is of one machine and of the same sides
throughout: what was measured elsewhere stays in a file of its own, under a name with its date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, Self

from oncelog.bench import machine
from oncelog.bench.measurement import Measurement
from oncelog.bench.side import Side
from oncelog.bench.workload import Workload
from oncelog.core.invariant import invariant
from oncelog.storage.atomic_file import replace_file

FILE_NAME: Final = "results.json"
_FORMAT: Final = 1


@dataclass(slots=True)
class Entry:
    """One workload."""

    group: str
    group_title: str
    workload: Workload
    rounds: dict[str, list[Measurement]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    taken_at: str = ""
    """When the run began that it was measured in."""

    def problem(self, side: str) -> str:
        """The problem of the first round that went wrong."""
        return next((entry.problem for entry in self.rounds.get(side, ()) if entry.problem), "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "group_title": self.group_title,
            "workload": asdict(replace(self.workload, settings=self.workload.shown_settings)),
            "rounds": {side: [entry.to_dict() for entry in rounds] for side, rounds in self.rounds.items()},
            "skipped": self.skipped,
            "taken_at": self.taken_at,
        }

    @classmethod
    def from_dict(cls, entries: dict[str, Any], taken_at: str) -> Self:
        """`taken_at` is for entries that do not know their own moment."""
        rounds = {
            side: [Measurement.from_dict(one) for one in measured] for side, measured in entries["rounds"].items()
        }
        workload = Workload.from_dict(entries["workload"])
        moment = entries.get("taken_at", taken_at)
        return cls(entries["group"], entries["group_title"], workload, rounds, entries["skipped"], moment)


@dataclass(slots=True)
class Results:
    sides: dict[str, str] = field(default_factory=dict)
    """Name and description, ours first."""
    machine: dict[str, Any] = field(default_factory=dict)
    taken_at: str = ""
    """When the last run began; entries of other runs have their own moments."""
    entries: dict[str, Entry] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    """What a reader must know, of the last run."""
    interruption: int = 0
    """The exit code if the run was ended early. Not kept in the file."""

    @classmethod
    def begin(cls, sides: Sequence[Side]) -> Self:
        names = [side.name for side in sides]
        remarks = [f"Ratios are those of {names[0]} over {names[1]}."] if len(names) > 2 else []
        descriptions = {side.name: side.description for side in sides}
        return cls(descriptions, machine.describe(), now(), remarks=remarks)

    @property
    def problems(self) -> list[str]:
        found = []
        for entry in self.entries.values():
            for side in entry.rounds:
                if entry.problem(side):
                    found.append(f"{entry.workload.name} on {side}: {entry.problem(side)}")
        return found

    @property
    def exit_code(self) -> int:
        return self.interruption or (1 if self.problems else 0)

    @property
    def moments(self) -> dict[str, list[str]]:
        """The groups that were measured in each run."""
        found: dict[str, list[str]] = {}
        for entry in self.entries.values():
            groups = found.setdefault(entry.taken_at, [])
            if entry.group not in groups:
                groups.append(entry.group)
        return found

    def fits(self, older: Results) -> bool:
        """Whether both are of the same sides, in the same order, on the same machine."""
        return list(older.sides.items()) == list(self.sides.items()) and older.machine == self.machine

    def merged_into(self, older: Results) -> Results:
        """What was measured now replaces what was measured before under the same name; the rest stays.

        Only if `fits` holds: ratios between different machines or sides mean nothing.
        """
        invariant(self.fits(older), "results of different sides or machines are not merged")
        merged = Results(self.sides, self.machine, self.taken_at, {**older.entries, **self.entries}, [*self.remarks])
        if len(merged.moments) > 1:
            runs = "; ".join(f"{moment}: {', '.join(groups)}" for moment, groups in sorted(merged.moments.items()))
            merged.remarks.append(f"Groups were measured at different moments. {runs}")
        return merged

    def to_json(self) -> str:
        content = {
            "format": _FORMAT,
            "taken_at": self.taken_at,
            "machine": self.machine,
            "sides": self.sides,
            "remarks": self.remarks,
            "entries": {name: entry.to_dict() for name, entry in self.entries.items()},
        }
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        content = json.loads(text)
        if content.get("format") != _FORMAT:
            raise ValueError(f"results of format {content.get('format')!r} cannot be read")
        taken_at = content["taken_at"]
        entries = {name: Entry.from_dict(entry, taken_at) for name, entry in content["entries"].items()}
        return cls(content["sides"], content["machine"], taken_at, entries, content["remarks"])


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def load(folder: Path) -> Results | None:
    path = folder / FILE_NAME
    return Results.from_json(path.read_text()) if path.exists() else None


def set_aside(folder: Path, older: Results) -> Path:
    """Renames results of another machine or other sides, so that new ones do not replace them."""
    moment = re.sub(r"\D+", "-", older.taken_at).strip("-")
    names = chain([f"results-{moment}.json"], (f"results-{moment}-{number}.json" for number in count(2)))
    return (folder / FILE_NAME).replace(next(folder / name for name in names if not (folder / name).exists()))


def save(results: Results, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    replace_file(path, results.to_json().encode(), durable=False)
    return path
