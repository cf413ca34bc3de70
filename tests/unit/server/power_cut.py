"""A disk that loses everything that was not fsynced, by the strictest reading of POSIX.

The content of a file is what it was at its last fsync. A name is there if the folder was fsynced since it was given,
and an old name if not. Real file systems keep more; none may keep less.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest


class DiskImage:
    """What is durable at one moment. Contents and lists of names are never changed, only replaced by the next fsync."""

    def __init__(
        self, root: int, names: dict[int, dict[str, int]], contents: dict[int, bytes], folders: set[int]
    ) -> None:
        self._root = root
        self._names = names
        self._contents = contents
        self._folders = folders

    def restore(self, target: Path) -> Path:
        self._restore(self._root, target)
        return target

    def _restore(self, inode: int, target: Path) -> None:
        if inode in self._folders or inode in self._names:
            target.mkdir()
            for name, child in self._names.get(inode, {}).items():
                self._restore(child, target / name)
        else:
            target.write_bytes(self._contents.get(inode, b""))


class StrictDisk:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._names: dict[int, dict[str, int]] = {}
        """By inode of a folder: the inodes behind the names in it."""
        self._contents: dict[int, bytes] = {}
        self._is_folder: set[int] = set()
        self._held: dict[int, int] = {}
        """Descriptors that keep inodes from being given to other files."""
        real_fsync, real_fdatasync = os.fsync, os.fdatasync
        monkeypatch.setattr(os, "fsync", lambda fd: (real_fsync(fd), self._synced(fd)))
        monkeypatch.setattr(os, "fdatasync", lambda fd: (real_fdatasync(fd), self._synced(fd)))

    def _synced(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if not path.is_relative_to(self._root):
            return
        status = os.fstat(fd)
        if status.st_ino not in self._held:
            self._held[status.st_ino] = os.dup(fd)
        if stat.S_ISDIR(status.st_mode):
            self._is_folder.add(status.st_ino)
            self._names[status.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
            for entry in os.scandir(path):
                if entry.is_dir():
                    self._is_folder.add(entry.inode())
        else:
            self._contents[status.st_ino] = path.read_bytes()

    def image(self) -> DiskImage:
        """What would be left if the power went now."""
        return DiskImage(self._root.stat().st_ino, dict(self._names), dict(self._contents), set(self._is_folder))

    def cut_power(self, target: Path) -> Path:
        """What the machine finds when it starts again, in a folder of its own."""
        return self.image().restore(target)

    def close(self) -> None:
        for fd in self._held.values():
            os.close(fd)
