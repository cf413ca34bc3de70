"""Descriptors of this process. A log that a test crashes is not closed, but its descriptors are when it is freed."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path


def open_files() -> list[str]:
    """What the open descriptors stand for."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(entry.readlink()))
    return found


def open_descriptors() -> int:
    """Without those of logs that earlier tests have left: garbage is collected at any time, also between two counts."""
    gc.collect()
    return len(open_files())
