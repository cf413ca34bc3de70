"""Who uses a data folder: a lock on `.lock` in it, which names its holder, and one on the folder itself.

If only the file were locked, a user could remove it as left over, and another broker would create and lock a new one.
Where folders cannot be locked, as on some network file systems, the file alone counts.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

LOCK_FILE: Final = ".lock"


class FolderInUseError(Exception):
    """The text says by whom."""


class FolderLock:
    """Held from its creation until `release`, or until nothing refers to it any more."""

    def __init__(self, path: Path) -> None:
        self._descriptors: list[int] = []
        try:
            self._take(path)
        except BaseException:
            self.release()
            raise

    def __del__(self) -> None:
        self.release()

    def _take(self, path: Path) -> None:
        file = self._opened(path / LOCK_FILE, os.O_RDWR | os.O_CREAT)
        folder = self._opened(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _lock_folder(folder)
        except BlockingIOError:
            holder = os.pread(file, 32, 0).decode(errors="replace").strip() or "unknown"
            raise FolderInUseError(
                f"{path} is in use by the process {holder}, which holds {path / LOCK_FILE}: stop it, or use "
                "another folder"
            ) from None
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)

    def _opened(self, path: Path, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        self._descriptors.append(descriptor)
        return descriptor

    @property
    def is_held(self) -> bool:
        return bool(self._descriptors)

    def release(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def _lock_folder(folder: int) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return
