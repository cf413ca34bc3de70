"""What a crash can leave half done in a log's folder, judged by suffix, and how it is brought to an end.

    .tmp        a small file being written: removed
    .deleted    a segment waiting to be unlinked: that is all it needs, and a start does not wait for it
    .cleaned    output of the cleaner that was not complete: removed
    .swap       complete output of the cleaner on its way in: the segments it replaces are removed, then it is renamed

From the lowest offset of a `.cleaned` file on, a `.swap` file may belong to a swap or a split that was not completed.
It is removed if the segment that it was made from is still there, and brought in if not.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from oncelog.protocol.batch import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, read_header
from oncelog.storage.atomic_file import TEMPORARY_SUFFIX
from oncelog.storage.segment_names import DELETED_SUFFIX, LOG_SUFFIX, SEGMENT_SUFFIXES, file_name, offset_of

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

logger = logging.getLogger("oncelog.storage")


def finish_interrupted_work(folder: Path, delete_later: Callable[[Sequence[Path], int], None]) -> list[str]:
    """Leave nothing but whole files, and those that were given to `delete_later`. Returns the names of the former."""
    found = _names(folder)
    names = [name for name in found if not name.endswith(DELETED_SUFFIX)]
    if len(names) < len(found):
        # Compaction of busy logs leaves hundreds of them in a minute, and a disk may take milliseconds for each.
        delete_later([folder / name for name in found if name.endswith(DELETED_SUFFIX)], 0)
    leftovers = [name for name in names if name.endswith(TEMPORARY_SUFFIX)]
    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    swapped = [name for name in names if name.endswith(SWAP_SUFFIX)]
    if not leftovers and not cleaned and not swapped:
        return names
    unfinished_from = min((offset for name in cleaned if (offset := offset_of(name)) is not None), default=None)
    for name in list(swapped):
        offset = offset_of(name)
        if offset is None or (
            unfinished_from is not None and offset >= unfinished_from and _is_unfinished(folder, names, offset)
        ):
            swapped.remove(name)
            leftovers.append(name)
    # What says that `.swap` files are unfinished goes last: their `.log`, and then the `.cleaned` files.
    leftovers.sort(key=lambda name: name.endswith(LOG_SUFFIX + SWAP_SUFFIX))
    _remove(folder, leftovers + cleaned)
    if swapped:
        _swap_in(folder, swapped)
    return [name for name in _names(folder) if not name.endswith(DELETED_SUFFIX)]


def _is_unfinished(folder: Path, names: Sequence[str], offset: int) -> bool:
    """Whether the `.swap` files of `offset` are of no use yet. The `.cleaned` files may come from another cleaning."""
    log_name = file_name(offset, LOG_SUFFIX)
    if log_name + CLEANED_SUFFIX in names:
        return True
    if log_name + SWAP_SUFFIX not in names:
        # The `.log` has its name already, and these belong to it.
        return False
    bases = [base for name in names if name.endswith(LOG_SUFFIX) and (base := offset_of(name)) is not None]
    holder = max((base for base in bases if base <= offset), default=None)
    return holder is not None and (holder == offset or _next_offset(folder / file_name(holder, LOG_SUFFIX)) > offset)


def _swap_in(folder: Path, swapped: Iterable[str]) -> None:
    logs = [name for name in swapped if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    if logs:
        first = min(offset_of(name) or 0 for name in logs)
        end = max(_next_offset(folder / name) for name in logs)
        # A cleaned segment may be empty. What has its own base offset is replaced in any case.
        replaced = [
            name
            for name in _names(folder)
            if Path(name).suffix in SEGMENT_SUFFIXES and first <= (offset_of(name) or 0) < max(end, first + 1)
        ]
        _remove(folder, replaced)
    # The `.log` first: once it has its name, files that have theirs are not taken for replaced ones any more.
    for name in sorted(swapped, key=lambda name: not name.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
        target = name.removesuffix(SWAP_SUFFIX)
        logger.info("%s: completing an interrupted swap of %s", folder, target)
        (folder / name).rename(folder / target)


def _next_offset(path: Path) -> int:
    """The offset after the last batch. A `.swap` file was complete and fsynced before it got its name."""
    next_offset, position, size = offset_of(path.name) or 0, 0, path.stat().st_size
    with path.open("rb") as file:
        while position + HEADER_BYTES <= size:
            file.seek(position)
            header = read_header(file.read(HEADER_BYTES))
            if header.size_bytes < HEADER_BYTES:
                break
            next_offset = header.next_offset
            position += header.batch_length + LENGTH_OVERHEAD_BYTES
    return next_offset


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        logger.info("%s: removing %s, left by an interrupted operation", folder, name)
        (folder / name).unlink(missing_ok=True)


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:  # and no paths: this is done for every log after a crash
        return sorted(entry.name for entry in entries)
