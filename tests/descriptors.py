"""Descriptors of this process. A log that a test crashes is not closed, but its descriptors are when it is freed."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

MANY: Final = 300


def open_files() -> list[str]:
    """What the open descriptors stand for."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(entry.readlink()))
    return found


class DescriptorWatch:
    """Frees what tests have left as soon as there is much of it. By itself that takes long in a process with a million
    objects, and `ulimit -n` is 1,024 on many machines."""

    def __init__(self) -> None:
        self._many = MANY

    def look(self) -> None:
        if _lowest_free() > self._many:
            gc.collect()
            self._many = max(MANY, _lowest_free() + MANY // 2)


def _lowest_free() -> int:
    """About as many are open. Faster than to list them."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def open_descriptors() -> int:
    """Without those of logs that earlier tests have left: garbage is collected at any time, also between two counts."""
    gc.collect()
    return len(open_files())


def open_descriptors_of_files() -> int:
    """Without sockets and pipes, which come and go with clients and processes of earlier tests."""
    gc.collect()
    return sum(name.startswith("/") for name in open_files())
