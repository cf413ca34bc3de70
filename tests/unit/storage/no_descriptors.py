"""A process that has used up its file descriptors, as one with many connections has."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Every further one is refused with EMFILE; one that is closed can be had again."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 50, before[1]))  # it is a limit of numbers
    try:
        while True:
            try:
                taken.append(os.dup(0))
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                break
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
