"""Open descriptors of log files, bounded: a thousand idle partitions hold none.

A `FileHandle` names a file and has its descriptor open only while the file is in use. The cache closes the handle that
was opened longest ago and not used since it was last considered (second chance), so the busy path pays one attribute
check. Where the process has no descriptor left, it closes one of its own to open another.

Handles belong to the thread that owns the broker's state. A worker thread opens descriptors of its own, because the
cache may close one at any time.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from oncelog.core.broker_config import BROKER_CONFIG

OPEN_FILES_MAX: Final = BROKER_CONFIG.defaults.integer("oncelog.open.files.max")
OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


class FileHandle:
    __slots__ = ("_cache", "_descriptor", "_touched", "path")

    def __init__(self, path: Path, cache: FileCache) -> None:
        self.path = path
        self._cache = cache
        self._descriptor = -1
        self._touched = False

    def descriptor(self, *, creates: bool = False) -> int:
        """Valid until the next call of `descriptor` on any handle of the cache. A missing file is made if `creates`."""
        descriptor = self._descriptor
        if descriptor < 0:
            return self._cache.open(self, creates=creates)
        self._touched = True
        return descriptor

    def create(self) -> None:
        """Make the file, empty, also when an older one is in the way."""
        self.close()
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))

    def rename(self, path: Path) -> None:
        """An open descriptor goes on to read the same bytes."""
        self.path.rename(path)
        self.path = path

    def close(self) -> None:
        self._cache.close(self)


class FileCache:
    def __init__(self, open_files_max: int = OPEN_FILES_MAX, *, read_only: bool = False) -> None:
        self._open_files_max = open_files_max
        self._flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)
        self._open: dict[FileHandle, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __del__(self) -> None:
        """Nobody has a log of it any more: an error ended its opening, or a test has it crash."""
        self.close_all()

    def handle(self, path: Path) -> FileHandle:
        return FileHandle(path, self)

    def open(self, handle: FileHandle, *, creates: bool = False) -> int:
        while len(self._open) >= self._open_files_max:
            self._evict()
        flags = self._flags | (os.O_CREAT if creates else 0)
        while (descriptor := self._try_to_open(handle.path, flags)) is None:
            self._evict()
        handle._descriptor = descriptor
        self._open[handle] = None
        return descriptor

    def _try_to_open(self, path: Path, flags: int) -> int | None:
        """None if the process has no descriptor left and the cache has one that can be closed for this file."""
        try:
            return os.open(path, flags, 0o644)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self._open:
                raise
            return None

    def close(self, handle: FileHandle) -> None:
        if handle._descriptor >= 0:
            del self._open[handle]
            descriptor, handle._descriptor = handle._descriptor, -1
            os.close(descriptor)

    def close_all(self) -> None:
        for handle in list(self._open):
            self.close(handle)

    def _evict(self) -> None:
        oldest = next(iter(self._open))
        if oldest._touched:
            oldest._touched = False
            del self._open[oldest]
            self._open[oldest] = None
        else:
            self.close(oldest)
