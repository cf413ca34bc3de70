"""Small files that are replaced as a whole: a reader, or a start after a crash, finds the old content or the new."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Final

from oncelog.core import failpoints
from oncelog.storage import fsyncs

TEMPORARY_SUFFIX = ".tmp"
_READ_BYTES: Final = 1 << 16
_numbers = itertools.count()


def replace_file(
    path: Path, content: bytes, *, durable: bool = True, folder_follows: bool = False, mode: int = 0o644
) -> None:
    """Write a temporary file and rename it. With `durable`, a power cut after the return cannot bring the old one back.

    With `folder_follows` it can, until the caller has synced the folder; it is the old one or the new one in any case.
    Its name has a number, because the loop and a worker may be at the same file at the same time.
    """
    temporary = path.with_name(f"{path.name}.{next(_numbers)}{TEMPORARY_SUFFIX}")
    try:
        _write_and_rename(temporary, path, content, durable, mode)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable and not folder_follows:
        sync_path(path.parent)


def _write_and_rename(temporary: Path, path: Path, content: bytes, durable: bool, mode: int) -> None:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        write_all(descriptor, content)
        failpoints.hit("checkpoint.before_fsync")
        if durable and fsyncs.are_needed():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    failpoints.hit("checkpoint.before_rename")
    temporary.rename(path)
    failpoints.hit("checkpoint.after_rename")


def write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def read_file(path: Path) -> bytes:
    """All of it. `Path.read_bytes` takes twice as long, and a start after a crash reads three files of every log."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while part := os.read(descriptor, _READ_BYTES):
            content += part
        return content
    finally:
        os.close(descriptor)


def sync_path(path: Path) -> None:
    """fsync a file or a folder through a descriptor of its own."""
    if not fsyncs.are_needed():
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
