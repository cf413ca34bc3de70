"""The `.snapshot` files of a log: which offsets there are, reading, writing and clearing out.

The content is `producer_snapshot`'s. A snapshot is written at each roll, named after the new segment's base offset, and
at a clean stop, named after the end of the log. One is kept for each segment, and the newest. They are not fsynced one
by one: the next flush does it, and a torn one is recognised by its checksum and rebuilt.

The one at the start of the log is all that is known of producers whose batches were deleted. So it is whole and on disk
before anything in front of it is deleted, and looked at when the log is opened.
"""

from __future__ import annotations

import logging
from bisect import bisect_right, insort
from collections.abc import Iterable, Set
from pathlib import Path
from typing import Final

from oncelog.core import failpoints
from oncelog.storage.atomic_file import replace_file, sync_path
from oncelog.storage.producer_snapshot import (
    CorruptSnapshotError,
    check_snapshot,
    decode_snapshot,
    encode_known_before,
    without_transactions,
)
from oncelog.storage.segment_names import file_name, offset_of

SNAPSHOT_SUFFIX: Final = ".snapshot"

logger = logging.getLogger("oncelog.storage")


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """The offsets of the snapshots among the files of a folder."""
    return [offset for name in names if name.endswith(SNAPSHOT_SUFFIX) and (offset := offset_of(name)) is not None]


class SnapshotFiles:
    def __init__(self, folder: Path, offsets: Iterable[int] = ()) -> None:
        self._folder = folder
        self.offsets: list[int] = sorted(offsets)
        self.unsynced: set[int] = set()
        """Snapshots written since the last fsync. Cleared by the code that does the fsync."""

    def path(self, offset: int) -> Path:
        return self._folder / file_name(offset, SNAPSHOT_SUFFIX)

    def newest_up_to(self, offset: int) -> int | None:
        index = bisect_right(self.offsets, offset)
        return self.offsets[index - 1] if index else None

    def read(self, offset: int) -> bytes:
        return self.path(offset).read_bytes()

    def write(self, offset: int, content: bytes, *, durable: bool = False) -> None:
        failpoints.hit("log.snapshot.before_write")
        replace_file(self.path(offset), content, durable=durable)
        failpoints.hit("log.snapshot.after_write")
        if offset not in self.offsets:
            insort(self.offsets, offset)
        self.unsynced.add(offset)

    def remove(self, offset: int) -> None:
        self.path(offset).unlink(missing_ok=True)
        self.offsets.remove(offset)
        self.unsynced.discard(offset)

    def is_intact(self, offset: int) -> bool:
        try:
            check_snapshot(self.read(offset))
        except (CorruptSnapshotError, FileNotFoundError) as error:
            logger.warning("%s cannot be used: %s", self.path(offset), error)
            return False
        return True

    def make_durable(self, offset: int) -> None:
        if offset in self.unsynced:
            sync_path(self.path(offset))
            sync_path(self._folder)
            self.unsynced.discard(offset)

    def restore_first(self, offset: int) -> None:
        """Make sure of the snapshot at the start of a log, which no batch can replace: rather a later one can."""
        later = [other for other in self.offsets if other > offset]
        if not later or self.is_intact(offset):
            return
        intact = next((other for other in later if self.is_intact(other)), None)
        if intact is not None:
            logger.warning("restoring %s from the one at offset %d", self.path(offset), intact)
            self.write(offset, encode_known_before(offset, decode_snapshot(self.read(intact))), durable=True)

    def end_transactions(self, offset: int) -> None:
        """Make the snapshot at `offset`, if there is one, forget which transactions were open there, and nothing else.

        At once on disk: with the old one in its place it can be what a log knows its producers by.
        """
        if offset not in self.offsets:
            return
        try:
            before = self.read(offset)
            after = without_transactions(before)
        except (CorruptSnapshotError, FileNotFoundError) as error:
            logger.warning("ignoring %s: %s", self.path(offset), error)
            self.remove(offset)
            return
        if after != before:
            self.write(offset, after, durable=True)

    def remove_outside(self, first: int, last: int) -> None:
        """Keep those from `first` to `last`, both included."""
        for offset in [offset for offset in self.offsets if not first <= offset <= last]:
            self.remove(offset)

    def remove_strays(self, base_offsets: Set[int]) -> None:
        """Keep those of segments and the newest one."""
        for offset in self.offsets[:-1]:
            if offset not in base_offsets:
                self.remove(offset)
