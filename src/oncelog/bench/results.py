"""Results as they are kept: every round of every workload on every side, as JSON. Parts run on their own are merged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from oncelog.bench import machine
from oncelog.bench.measurement import Measurement
from oncelog.bench.side import Side
from oncelog.bench.workload import Workload
from oncelog.core.invariant import invariant

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

    def problem(self, side: str) -> str:
        """Of the first round that went wrong."""
        return next((entry.problem for entry in self.rounds.get(side, ()) if entry.problem), "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "group_title": self.group_title,
            "workload": asdict(self.workload),
            "rounds": {side: [entry.to_dict() for entry in rounds] for side, rounds in self.rounds.items()},
            "skipped": self.skipped,
        }

    @classmethod
    def from_dict(cls, entries: dict[str, Any]) -> Self:
        rounds = {
            side: [Measurement.from_dict(one) for one in measured] for side, measured in entries["rounds"].items()
        }
        workload = Workload.from_dict(entries["workload"])
        return cls(entries["group"], entries["group_title"], workload, rounds, entries["skipped"])


@dataclass(slots=True)
class Results:
    sides: dict[str, str] = field(default_factory=dict)
    """Name and description, ours first."""
    machine: dict[str, Any] = field(default_factory=dict)
    taken_at: str = ""
    entries: dict[str, Entry] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, sides: Sequence[Side]) -> Self:
        moment = datetime.now(UTC).strftime("%Y-%m-%d")
        return cls({side.name: side.description for side in sides}, machine.describe(), moment)

    @property
    def problems(self) -> list[str]:
        found = []
        for entry in self.entries.values():
            for side in entry.rounds:
                if entry.problem(side):
                    found.append(f"{entry.workload.name} on {side}: {entry.problem(side)}")
        return found

    def merged_into(self, older: Results) -> Results:
        """What was measured now replaces what was measured before under the same name; the rest stays.

        Only of the same sides: a ratio between different things would be none.
        """
        invariant(older.sides == self.sides, "results of different sides are not merged")
        return Results(self.sides, self.machine, self.taken_at, {**older.entries, **self.entries}, self.remarks)

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
        entries = {name: Entry.from_dict(entry) for name, entry in content["entries"].items()}
        return cls(content["sides"], content["machine"], content["taken_at"], entries, content["remarks"])


def load(folder: Path) -> Results | None:
    path = folder / FILE_NAME
    return Results.from_json(path.read_text()) if path.exists() else None


def set_aside(folder: Path) -> Path:
    """Keeps results that cannot be merged with what is measured now."""
    return (folder / FILE_NAME).replace(folder / f"before-{FILE_NAME}")


def save(results: Results, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    path.write_text(results.to_json())
    return path
