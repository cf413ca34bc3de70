"""A disk that runs full, or breaks, at a chosen operation, and may recover."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_WRITES = ("pwritev", "pwrite", "write", "ftruncate", "rename", "mkdir")
_SYNCS = ("fsync", "fdatasync")


class FaultyDisk:
    """Counts operations that change the disk below `root`; from number `first` on, `count` of them fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path, *, code: int = errno.ENOSPC, syncs: bool = False):
        self._root = str(root)
        self._code = code
        self.operations = 0
        self.first: int | None = None
        self.count = 0
        self.is_short = False
        """Whether a failing write puts half of its bytes into the file, as a disk does that runs full."""
        for name in _WRITES + (_SYNCS if syncs else ()):
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))
        monkeypatch.setattr(os, "open", self._wrap_open(os.open))

    def fail(self, first: int, count: int = 1 << 30) -> None:
        """Counted from now."""
        self.operations, self.first, self.count = 0, first, count

    def heal(self) -> None:
        self.first = None

    def _is_failing(self) -> bool:
        self.operations += 1
        return self.first is not None and self.first <= self.operations < self.first + self.count

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self._concerns(arguments[0]) and self._is_failing():
                if self.is_short and name == "pwritev":
                    data = b"".join(bytes(buffer) for buffer in arguments[1])
                    return os_pwrite(arguments[0], data[: len(data) // 2], arguments[2])
                raise OSError(self._code, "injected", name)
            return real(*arguments, **options)

        os_pwrite = os.pwrite
        return call

    def _wrap_open(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            creates = flags & os.O_CREAT and not Path(path).exists()
            if creates and self._concerns(path) and self._is_failing():
                raise OSError(self._code, "injected", str(path))
            return real(path, flags, *arguments, **options)

        return call

    def _concerns(self, target: Any) -> bool:
        path = Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else target
        return str(path).startswith(self._root)
