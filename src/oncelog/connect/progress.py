"""How far a connector is, for status and metrics. Written by its own thread, read by others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
        return {
            "connector": self.name,
            "state": "running" if is_running else self.state,
            "records": self.progress.records,
            "commits": self.progress.commits,
            "dead_letters": self.progress.dead_letters,
            "restarts": self.restarts,
            "lag": self.progress.lag,
            "position": self.progress.position,
            "error": self.error,
            "since_ms": self.since_ms,
        }
