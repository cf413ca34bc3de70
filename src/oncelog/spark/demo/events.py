"""What happened when: one JSON object per line, appended by every process of the demo and read by the report."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Event:
    at_s: float
    """Seconds since the epoch."""
    lane: str
    """Whose: `broker`, `driver`, `executor`, or a query."""
    what: str
    """`up`, `down`, `killed`; of a query `begin`, `done`, `failed`, `skipped`, `lost`."""
    batch: int = -1
    rows: int = 0
    position: int = 0
    """How many input records a query has read."""


class EventLog:
    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, lane: str, what: str, *, batch: int = -1, rows: int = 0, position: int = 0) -> None:
        event = Event(time.time(), lane, what, batch, rows, position)
        # One short write in append mode: lines of several processes do not mix.
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(event)) + "\n")

    def read(self) -> list[Event]:
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines()
        return sorted((Event(**json.loads(line)) for line in lines), key=lambda event: event.at_s)

    def position(self, lane: str) -> int:
        """How far a query has come."""
        return max((event.position for event in self.read() if event.lane == lane), default=0)
