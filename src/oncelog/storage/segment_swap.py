"""The swap of a cleaned segment for those it replaces: renames, in an order that a crash can stop anywhere.

    1. <file>.cleaned -> <file>.swap     the `.log` last
    2. the replaced segments' files get `.deleted`
    3. <file>.swap -> <file>             the `.log` first

Before the last rename of step 1 a start finds a `.cleaned` file and removes all of it: nothing has happened. From then
on it completes steps 2 and 3 (see `interrupted_files`): everything has happened. What `.cleaned` files hold was
fsynced before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from oncelog.core import failpoints
from oncelog.core.dataclass import dataclass
from oncelog.storage.interrupted_files import CLEANED_SUFFIX, SWAP_SUFFIX
from oncelog.storage.segment_names import LOG_SUFFIX


@dataclass(frozen=True, slots=True)
class CleanedSegment:
    """A complete new segment, in files with the suffix `.cleaned`."""

    base_offset: int
    size_bytes: int
    files: tuple[Path, ...]
    replaces: tuple[tuple[int, int], ...]
    """Base offset and size of each segment that it was made from."""
    generation: int
    """The generation of the log when the work began: a truncation since makes the segment unusable."""


def swap_in(cleaned: Sequence[Path], remove_replaced: Callable[[], None]) -> None:
    """`cleaned` are the files of one segment. Raises OSError: then only the next start finds out what has happened."""
    log_last = sorted(cleaned, key=lambda path: LOG_SUFFIX in path.suffixes)
    swapped = [_rename(path, path.name.removesuffix(CLEANED_SUFFIX) + SWAP_SUFFIX) for path in log_last]
    remove_replaced()
    for path in reversed(swapped):
        _rename(path, path.name.removesuffix(SWAP_SUFFIX))
    failpoints.hit("cleaner.swap.after")


def _rename(path: Path, name: str) -> Path:
    failpoints.hit("cleaner.swap.before_rename")
    return path.rename(path.with_name(name))
