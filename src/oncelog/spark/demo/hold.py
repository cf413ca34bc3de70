"""The worst moment for a driver to die, and how the demo meets it: the queries wait there until the kill comes.

    exactly-once    everything is written, and the transaction is about to be committed
    at-least-once   everything is written, and Spark is about to be told
    at-most-once    the input is noted as done, and about to be written

A kill at any moment is survived; at these moments it also shows. Files tell what is asked for and who waits, since the
kill comes from another process. Nobody waits for ever: a driver that is not killed after all goes on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

HELD_MAX_S = 40.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Hold:
    folder: Path

    @property
    def _asked(self) -> Path:
        return self.folder / "hold"

    def ask(self) -> None:
        self._asked.touch()

    def release(self) -> None:
        self._asked.unlink(missing_ok=True)
        for mark in self.folder.glob("held-*"):
            mark.unlink()

    def is_held(self, lane: str) -> bool:
        return (self.folder / f"held-{lane}").exists()

    def wait_here(self, lane: str) -> None:
        """Called by a query at its worst moment; returns at once unless somebody asked for it."""
        if not self._asked.exists():
            return
        (self.folder / f"held-{lane}").touch()
        deadline_s = time.monotonic() + HELD_MAX_S
        while self._asked.exists() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
