"""Files that nobody looks up any more and that are unlinked a while later, so that readers in the middle can finish.

The owner of the broker's state adds to the queue and takes what is due. Unlinking can take long and may run on a worker
thread: it works on paths alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from oncelog.core.ids import TopicPartition
from oncelog.storage.atomic_file import sync_path
from oncelog.storage.folder_names import DELETE_MARK, marked_name

logger = logging.getLogger("oncelog.storage")


class DeletionQueue:
    def __init__(self) -> None:
        self._new: list[tuple[Path, int]] = []
        self._waiting: list[tuple[int, Path]] = []

    def __len__(self) -> int:
        return len(self._new) + len(self._waiting)

    def add(self, paths: Sequence[Path], delay_ms: int) -> None:
        """The delay runs from the next `take_due`."""
        self._new += [(path, delay_ms) for path in paths]

    def add_renamed(self, renames: FolderRenames) -> None:
        self._new += renames.renamed

    def take_due(self, now_ms: int) -> list[Path]:
        """Files and folders to be given to `unlink_all`, on any thread."""
        self._waiting += [(now_ms + delay_ms, path) for path, delay_ms in self._new]
        self._new.clear()
        due = [path for due_ms, path in self._waiting if due_ms <= now_ms]
        self._waiting = [(due_ms, path) for due_ms, path in self._waiting if due_ms > now_ms]
        return due

    def take_all(self) -> list[Path]:
        paths = [path for path, _ in self._new] + [path for _, path in self._waiting]
        self._new.clear()
        self._waiting.clear()
        return paths


class FolderRenames:
    """Renames folders of deleted logs, all with one fsync, so that no start opens them again."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._folders: list[tuple[Path, TopicPartition, int]] = []
        self.renamed: list[tuple[Path, int]] = []
        """New paths, and after how many milliseconds they are unlinked."""

    def add(self, folder: Path, partition: TopicPartition, delay_ms: int) -> None:
        self._folders.append((folder, partition, delay_ms))

    def run(self) -> None:
        for folder, partition, delay_ms in self._folders:
            try:
                target = folder.rename(self._parent / marked_name(partition, DELETE_MARK))
                self.renamed.append((target, delay_ms))
            except OSError as error:
                logger.error("%s is deleted, but could not be removed; the next start sets it aside: %s", folder, error)
        if self.renamed:
            sync_path(self._parent)


def unlink_all(paths: Sequence[Path]) -> None:
    """Files and whole folders. What cannot be removed is left to the next start, with a line in the log."""
    for path in paths:
        try:
            if path.is_dir():
                import shutil  # with all that it can compress, too much for each start

                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("could not remove %s: %s", path, error)


def unlink_at_once(paths: Sequence[Path], delay_ms: int) -> None:
    """Used for a log that is opened on its own, without a queue."""
    unlink_all(paths)
