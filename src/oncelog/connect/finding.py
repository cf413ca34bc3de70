"""What `oncelog connect check` says about one thing that a connector needs."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    is_met: bool
    text: str
    fix: str = ""
    """SQL, or a command of the database."""
    command: tuple[str, ...] = ()
    """The words of a command of Oncelog that mends it."""
