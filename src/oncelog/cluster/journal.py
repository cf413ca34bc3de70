"""The journal behind a single node's metadata: a text file that survives a kill at any byte.

A line is eight hexadecimal digits of CRC-32C over the rest, a space, a JSON object, a newline. The object is a change.
Changes that are made together are a JSON array of objects in one line, so that they hold together or not at all. They
are made by appending their line and fsyncing the file before they are answered. At start lines are read until one is
incomplete or fails its CRC: from there on the file is cut, with the next change. Only the last line can be in that
state after a crash, because nothing is appended before the line ahead of it is on disk; a bad line with good ones after
it is damage, and is reported instead of being dropped. A bad last line can be damage as well: whoever reads the journal
must not rely on it having been the last one that was promised.

The file is rewritten (`<name>.tmp`, fsync, rename, fsync of the folder) when it has grown to several times what its
state needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import google_crc32c

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.storage.atomic_file import sync_path, write_all
from oncelog.storage.log_dir import LogDirError

JournalEntry = dict[str, Any]
OWNER_ONLY: Final = 0o600
"""The journal has the keys of users, with which one could pose as the broker. `oncelog.umask` does not apply to it."""


class JournalDamaged(LogDirError):
    """The journal is broken in the middle, which is not the trace of a crash, or of a newer version: not ours to
    repair by guessing."""


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.changes = 0
        self._size_bytes = 0
        self._is_torn = False
        """Whether the file has more than the lines that count. It is cut before the next one."""
        self._is_name_synced = True
        """Whether a power cut would find this file by its name, and not the one before the last rewrite."""
        self._fd = -1

    def open(self) -> tuple[list[JournalEntry], int]:
        """All entries, and how many bytes of a torn or damaged last line follow them."""
        self.path.with_suffix(".tmp").unlink(missing_ok=True)
        is_new = not self.path.exists()
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, OWNER_ONLY)
        if os.fstat(self._fd).st_mode & 0o077:
            os.fchmod(self._fd, OWNER_ONLY)
        if is_new:
            # Its lines are fsynced one by one; without its name they would be lost all the same.
            sync_path(self.path.parent)
        data = self.path.read_bytes()
        entries, good_bytes = _parse(data, self.path)
        torn_bytes = len(data) - good_bytes
        self._is_torn = torn_bytes > 0
        self._size_bytes, self.changes = good_bytes, len(entries)
        return entries, torn_bytes

    def append(self, *entries: JournalEntry) -> None:
        """On disk, all of them, when this returns. Raises KafkaError if none of them is."""
        line = format_line(entries[0] if len(entries) == 1 else entries)
        try:
            if self._is_torn:
                self._cut_back()
            if not self._is_name_synced:
                self._sync_name()
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were written")
            os.fsync(self._fd)
        except OSError as error:
            # The line was never promised to anyone; left in place, the next one would follow a torn line.
            self._is_torn = True
            with suppress(OSError):
                self._cut_back()
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.path} cannot be written: {error}") from error
        self._size_bytes += len(line)
        self.changes += len(entries)

    def _cut_back(self) -> None:
        os.ftruncate(self._fd, self._size_bytes)
        self._is_torn = False

    def _sync_name(self) -> None:
        sync_path(self.path.parent)
        self._is_name_synced = True

    def rewrite(self, entries: Iterable[JournalEntry]) -> None:
        """If it fails, the journal is one of both: all entries are in the old one too, and `append` makes sure."""
        lines = [format_line(entry) for entry in entries]
        temporary = self.path.with_suffix(".tmp")
        fd = -1
        try:
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, OWNER_ONLY)
            write_all(fd, b"".join(lines))
            os.fsync(fd)
            temporary.rename(self.path)
        except BaseException as error:
            with suppress(OSError):
                os.close(fd)
            if not isinstance(error, OSError):
                raise
            with suppress(OSError):
                temporary.unlink()
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{temporary} cannot be written: {error}") from error
        # From the rename on the new file is the journal, whatever else fails.
        os.close(self._fd)
        self._fd, self._size_bytes, self.changes, self._is_torn = fd, sum(map(len, lines)), len(lines), False
        self._is_name_synced = False
        try:
            self._sync_name()
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.path.parent} cannot be synced: {error}") from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def format_line(content: JournalEntry | Sequence[JournalEntry]) -> bytes:
    body = json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
    return b"%08x %s\n" % (google_crc32c.value(body), body)


def _parse(data: bytes, path: Path) -> tuple[list[JournalEntry], int]:
    entries: list[JournalEntry] = []
    position = 0
    while position < len(data):
        end = data.find(b"\n", position)
        changes = parse_line(data[position:end]) if end >= 0 else None
        if changes is None:
            if end >= 0 and _parse_any(data[end + 1 :]):
                raise JournalDamaged(_damage(path, position))
            break
        entries += changes
        position = end + 1
    return entries, position


def _damage(path: Path, position: int) -> str:
    """Cut within the damaged line, not before it: what is left of it tells the next start that changes are missing."""
    return (
        f"{path} is damaged at byte {position}, with intact changes behind it. Restore the file from a copy, or give "
        f"up every change from there on with 'truncate -s {position + 1} {path}'. Settings are then as before these "
        f"changes, also those of retention, and so are users and ACLs; topics that were deleted are back, without "
        f"records; topics that were created keep their records and lose their settings. Producer ids and "
        f"epochs are not affected."
    )


def _parse_any(rest: bytes) -> bool:
    return any(parse_line(line) is not None for line in rest.split(b"\n"))


def parse_line(line: bytes) -> list[JournalEntry] | None:
    """The entries of a line without its newline, or None if it is torn or damaged."""
    if len(line) < 10 or line[8:9] != b" ":
        return None
    body = line[9:]
    try:
        expected = int(line[:8], 16)
    except ValueError:
        return None
    if google_crc32c.value(body) != expected:
        return None
    content = json.loads(body)
    entries = content if isinstance(content, list) else [content]
    return entries if all(isinstance(entry, dict) for entry in entries) else None
