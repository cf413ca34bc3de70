"""Small files that are replaced as a whole: a reader, or a start after a crash, finds the old content or the new."""

from __future__ import annotations

import os
from pathlib import Path

from oncelog.core import failpoints

TEMPORARY_SUFFIX = ".tmp"


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write `<path>.tmp` and rename it. With `durable`, a power cut after the return cannot bring the old file back."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(descriptor, content)
        failpoints.hit("checkpoint.before_fsync")
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    failpoints.hit("checkpoint.before_rename")
    temporary.rename(path)
    failpoints.hit("checkpoint.after_rename")
    if durable:
        sync_path(path.parent)


def write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_path(path: Path) -> None:
    """fsync a file or a folder through a descriptor of its own."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
