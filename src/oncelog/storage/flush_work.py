"""An fsync that is to be done: a list of files, and what may be said of the log afterwards.

It is made by the owner of the broker's state and may run on a worker thread, because it knows paths only and opens
descriptors of its own. A file that is gone by then was deleted or cut off since, and needs no fsync.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from oncelog.core import failpoints
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import TopicPartition
from oncelog.storage import fsyncs
from oncelog.storage.file_cache import OUT_OF_DESCRIPTORS

_TRANSIENT: Final = (errno.ENOMEM, *OUT_OF_DESCRIPTORS)


class FileNotOpened(OSError):
    """No fsync was tried, for want of a descriptor or memory: the kernel still has what it had, a later one may do it.

    Any other error of opening a file that is there says as much about the disk as a failed fsync does.
    """


@dataclass(frozen=True, slots=True)
class FlushWork:
    partition: TopicPartition
    files: tuple[Path, ...]
    folder: Path | None
    """Given if it or files in it were made or renamed, so that the names must survive as well."""
    end_offset: int
    """Everything below is on disk when the work is done."""
    generation: int
    """The generation of the log when the work was made: after a truncation `end_offset` means nothing."""
    is_complete: bool = True
    """Whether indexes and all else that is rebuilt after a crash are included, so that the recovery point may move."""
    folder_changes: int = 0
    """How many changes of names in the folder are on disk when the work is done."""

    def run(self) -> None:
        """Raises OSError. What the kernel could not write then is lost: the log must be recovered before it goes on.

        Unless it is FileNotOpened: then nothing is lost, and the work can be tried again.
        """
        failpoints.hit("log.flush.before_fsync")
        for path in self.files:
            # Of the systems this runs on, macOS has no fdatasync.
            _sync(path, getattr(os, "fdatasync", os.fsync))
        if self.folder is not None and sync_folder(self.folder):
            sync_folder(self.folder.parent)
        failpoints.hit("log.flush.after_fsync")


def sync_folder(path: Path) -> bool:
    return _sync(path, os.fsync)


def _sync(path: Path, sync: Callable[[int], None]) -> bool:
    """Whether it is there."""
    if not fsyncs.are_needed():
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in _TRANSIENT:
            raise
        raise FileNotOpened(error.errno, error.strerror, str(path)) from error
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
    return True
