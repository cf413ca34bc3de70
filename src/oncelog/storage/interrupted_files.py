"""What a crash can leave half done in a log's folder, judged by suffix, and how it is brought to an end.

    .tmp        a small file being written: removed
    .deleted    a segment waiting to be unlinked: removed
    .cleaned    output of the cleaner that was not complete: removed
    .swap       complete output of the cleaner on its way in: the segments it replaces are removed, then it is renamed

From the lowest offset of a `.cleaned` file on, a `.swap` file belongs to a split of a segment that was not completed,
and is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from oncelog.protocol.batch import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, read_header
from oncelog.storage.atomic_file import TEMPORARY_SUFFIX
from oncelog.storage.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_of,
)

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

_SEGMENT_SUFFIXES: Final = frozenset({LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX})

logger = logging.getLogger("oncelog.storage")


def finish_interrupted_work(folder: Path) -> list[str]:
    """Leave nothing but whole files. Returns the names that are there afterwards."""
    names = _names(folder)
    leftovers = [name for name in names if name.endswith((TEMPORARY_SUFFIX, DELETED_SUFFIX))]
    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    swapped = [name for name in names if name.endswith(SWAP_SUFFIX)]
    if not leftovers and not cleaned and not swapped:
        return names
    unfinished_from = min((offset for name in cleaned if (offset := offset_of(name)) is not None), default=None)
    for name in list(swapped):
        offset = offset_of(name)
        if offset is None or (unfinished_from is not None and offset >= unfinished_from):
            swapped.remove(name)
            leftovers.append(name)
    # The `.cleaned` files say which `.swap` files are unfinished, so they go last.
    _remove(folder, leftovers + cleaned)
    if swapped:
        _swap_in(folder, swapped)
    return _names(folder)


def _swap_in(folder: Path, swapped: Iterable[str]) -> None:
    logs = [name for name in swapped if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    if logs:
        first = min(offset_of(name) or 0 for name in logs)
        end = max(_next_offset(folder / name) for name in logs)
        # A cleaned segment may be empty. What has its own base offset is replaced in any case.
        replaced = [
            name
            for name in _names(folder)
            if Path(name).suffix in _SEGMENT_SUFFIXES and first <= (offset_of(name) or 0) < max(end, first + 1)
        ]
        _remove(folder, replaced)
    # The `.log` first: once it has its name, files that have theirs are not taken for replaced ones any more.
    for name in sorted(swapped, key=lambda name: not name.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
        target = name.removesuffix(SWAP_SUFFIX)
        logger.info("%s: completing an interrupted swap of %s", folder, target)
        (folder / name).rename(folder / target)


def _next_offset(path: Path) -> int:
    """The offset after the last batch. The file was complete and fsynced before it got its name."""
    next_offset, position, size = offset_of(path.name) or 0, 0, path.stat().st_size
    with path.open("rb") as file:
        while position < size:
            file.seek(position)
            header = read_header(file.read(HEADER_BYTES))
            next_offset = header.next_offset
            position += header.batch_length + LENGTH_OVERHEAD_BYTES
    return next_offset


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        logger.info("%s: removing %s, left by an interrupted operation", folder, name)
        (folder / name).unlink(missing_ok=True)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
