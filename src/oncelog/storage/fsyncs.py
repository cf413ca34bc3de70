"""Whether files are fsynced at all. They are, unless the folder is thrown away with its process, as those of tests are.

What a process has written outlives its kill: an fsync is for the end of the machine.
"""

from __future__ import annotations

_are_needed = True


def are_needed() -> bool:
    return _are_needed


def do_without() -> None:
    """From here on, in this process. For `oncelog serve --throw-away`."""
    global _are_needed
    _are_needed = False
