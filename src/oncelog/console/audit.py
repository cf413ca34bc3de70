"""The log of changes: one JSON object a line, on disk before the change is made, and again with what came of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from oncelog.console.watch import wall_ms


class AuditLog:
    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self) -> None:
        """Raises OSError if nothing can be logged."""
        os.close(self._open())

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, **facts: Any) -> None:
        """Raises OSError: a change that cannot be logged must not be made."""
        line = json.dumps({"time_ms": wall_ms(), "what": what, **facts}, ensure_ascii=False) + "\n"
        descriptor = self._open()
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
