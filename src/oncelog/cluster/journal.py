"""The journal in which earlier versions kept the metadata of one node. It is read once, to be taken over.

A line is eight hexadecimal digits of CRC-32C over the rest, a space, a JSON object, a newline. The object is a change.
Changes that were made together are a JSON array of objects in one line. Only the last line can be torn after a crash; a
bad line with good ones after it is damage, and is reported instead of being dropped. A bad last line can be damage as
well: whoever reads the journal must not rely on it having been the last one that was promised.

`node_facts` has the form of the line for what one node keeps beside Kafka's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import google_crc32c

from oncelog.core.named_tuple import NamedTuple
from oncelog.storage.log_dir import LogDirError

JournalEntry = dict[str, Any]
OWNER_ONLY: Final = 0o600
"""It has a secret of the node, and a journal the keys of users. `oncelog.umask` does not apply to it."""


class JournalDamaged(LogDirError):
    """The journal is broken in the middle, which is not the trace of a crash, or of a newer version: not ours to
    repair by guessing."""


class ReadJournal(NamedTuple):
    entries: list[JournalEntry]
    torn_bytes: int
    """How many bytes of a torn or damaged last line follow them."""


def read_journal(path: Path) -> ReadJournal:
    """Empty if there is none. Raises JournalDamaged."""
    data = path.read_bytes() if path.exists() else b""
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
    return ReadJournal(entries, len(data) - position)


def format_line(content: JournalEntry | Sequence[JournalEntry]) -> bytes:
    body = json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
    return b"%08x %s\n" % (google_crc32c.value(body), body)


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
