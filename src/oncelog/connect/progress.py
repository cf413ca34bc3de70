"""How far a connector is, for status and metrics. Written by its own thread, read by others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class SnapshotProgress:
    """How far the snapshot of a table is."""

    table: str = ""
    rows: int = 0
    """Read, and not committed yet unless `snapshot_rows` says so."""
    estimated: int = 0
    """How many rows the table has, by the database's own estimate."""

    def as_row(self) -> dict[str, Any]:
        return {"table": self.table, "rows": self.rows, "estimated": self.estimated}

    def text(self) -> str:
        return f"{self.table}, {self.rows:,} of about {max(self.rows, self.estimated):,} rows"


@dataclass(slots=True)
class Progress:
    records: int = 0
    """Written and committed since this process started."""
    commits: int = 0
    dead_letters: int = 0
    position: str = ""
    """For people: offsets of a sink, the position in the source."""
    is_current: bool = False
    """Whether everything that was there when the connector started has been copied."""
    lag: int = 0
    """What is known to wait: records of a sink's input, bytes of a source's log."""
    snapshot: SnapshotProgress | None = None
    """While one is taken."""

    def committed(self, records: int, position: str, lag: int = 0) -> None:
        self.records += records
        self.commits += 1
        self.position = position
        self.lag = lag


@dataclass(slots=True)
class Status:
    name: str
    progress: Progress = field(default_factory=Progress)
    state: str = "starting"
    restarts: int = 0
    error: str = ""
    since_ms: int = 0

    def as_row(self) -> dict[str, Any]:
        is_running = self.state == "starting" and self.progress.commits > 0
        snapshot = self.progress.snapshot
        return {
            "connector": self.name,
            "state": "running" if is_running else self.state,
            "snapshot": None if snapshot is None else snapshot.as_row(),
            "records": self.progress.records,
            "commits": self.progress.commits,
            "dead_letters": self.progress.dead_letters,
            "restarts": self.restarts,
            "lag": self.progress.lag,
            "position": self.progress.position,
            "error": self.error,
            "since_ms": self.since_ms,
        }
