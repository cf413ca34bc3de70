"""Open descriptors of log files, bounded: a thousand idle partitions hold none.

A `FileHandle` names a file and has its descriptor open only while the file is in use. The cache closes the handle that
was opened longest ago and not used since it was last considered (second chance), so the busy path pays one attribute
check. Handles belong to the thread that owns the broker's state. A worker thread opens descriptors of its own, because
the cache may close one at any time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Protocol

OPEN_FILES_MAX: Final = 512


class Closable(Protocol):
    def close(self) -> None: ...


class FileHandle:
    __slots__ = ("_cache", "_descriptor", "_touched", "path")

    def __init__(self, path: Path, cache: FileCache) -> None:
        self.path = path
        self._cache = cache
        self._descriptor = -1
        self._touched = False

    def descriptor(self) -> int:
        """Valid until the next call of `descriptor` on any handle of the cache."""
        descriptor = self._descriptor
        if descriptor < 0:
            return self._cache.open(self)
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
    def __init__(self, open_files_max: int = OPEN_FILES_MAX) -> None:
        self._open_files_max = open_files_max
        self._open: dict[FileHandle, None] = {}
        self._lent: dict[Closable, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def handle(self, path: Path) -> FileHandle:
        return FileHandle(path, self)

    def open(self, handle: FileHandle) -> int:
        while len(self._open) >= self._open_files_max:
            self._evict()
        handle._descriptor = os.open(handle.path, os.O_RDWR | os.O_CLOEXEC)
        self._open[handle] = None
        return handle._descriptor

    def close(self, handle: FileHandle) -> None:
        if handle._descriptor >= 0:
            del self._open[handle]
            descriptor, handle._descriptor = handle._descriptor, -1
            os.close(descriptor)

    def lend(self, resource: Closable) -> None:
        """Bound the descriptors of things that open a file of their own and open it again after `close`."""
        self._lent.pop(resource, None)
        self._lent[resource] = None
        if len(self._lent) > self._open_files_max:
            oldest = next(iter(self._lent))
            del self._lent[oldest]
            oldest.close()

    def take_back(self, resource: Closable) -> None:
        self._lent.pop(resource, None)
        resource.close()

    def close_all(self) -> None:
        for handle in list(self._open):
            self.close(handle)
        for resource in list(self._lent):
            self.take_back(resource)

    def _evict(self) -> None:
        oldest = next(iter(self._open))
        if oldest._touched:
            oldest._touched = False
            del self._open[oldest]
            self._open[oldest] = None
        else:
            self.close(oldest)
