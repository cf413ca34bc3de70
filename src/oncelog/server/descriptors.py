"""File descriptors: as many as the system allows, shared between connections and log files."""

from __future__ import annotations

import resource
from typing import Final

from oncelog.core.named_tuple import NamedTuple

RESERVED: Final = 64
"""For the listener, the event loop, clients of the metrics port, the journal, checkpoints and files that are being
written anew."""
OPEN_FILES_MIN: Final = 16


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit, as `ulimit -n` does. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return soft  # macOS names a hard limit that it does not grant
    return hard


class Shares(NamedTuple):
    open_files: int
    connections: int
    """How many connections are accepted at most. More would take the descriptors of log files."""


def share(descriptors: int, open_files_max: int) -> Shares:
    """Log files get what they are meant to have, but no more than half: a log can do with less, a client cannot."""
    usable = descriptors - RESERVED
    open_files = min(open_files_max, max(OPEN_FILES_MIN, usable // 2))
    return Shares(open_files, max(1, usable - open_files))
