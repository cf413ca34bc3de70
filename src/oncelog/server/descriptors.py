"""File descriptors: as many as the system allows, shared between connections and log files."""

from __future__ import annotations

import resource
from typing import Final

RESERVED: Final = 64
"""For the listener, the event loop, the journal, checkpoints and files that are being written anew."""


def raise_limit() -> int:
    """As `ulimit -n` up to its hard limit; what the process may open from then on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return soft  # macOS names a hard limit that it does not grant
    return hard


def connections_max(descriptors: int, open_files_max: int) -> int:
    """Connections beyond that could not be accepted, or would take the descriptors of log files."""
    return max(1, descriptors - open_files_max - RESERVED)
