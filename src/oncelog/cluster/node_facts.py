"""What one node keeps of its own beside Kafka's metadata: one line in `oncelog-metadata.journal`.

    crc32c {"boot":"...","doubtful_epoch":3,"end_offset":120,"kind":"moved to __cluster_metadata-0","secret":"..."}

It is where earlier versions had their journal (see `journal`, which has the form of the line), and they refuse an entry
of a kind that they do not know: a folder cannot go back to them. Each change replaces the file.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

from oncelog.cluster.journal import OWNER_ONLY, JournalEntry, format_line, parse_line
from oncelog.core.named_tuple import NamedTuple
from oncelog.storage.atomic_file import replace_file

JOURNAL_FILE: Final = "oncelog-metadata.journal"
_KIND: Final = "moved to __cluster_metadata-0"


class NodeFacts(NamedTuple):
    boot_id: str | None = None
    """Of the machine at the last start, if that is known."""
    doubtful_epoch: int = 0
    """Records of transactions with a lower leader epoch were the last of a log that may have lost its end; 0: none."""
    end_offset: int = 0
    """The metadata log was at least so long."""
    secret: bytes | None = None
    """Random bytes that no client knows."""

    @classmethod
    def read(cls, path: Path) -> NodeFacts | None:
        """None if there is no such file, or a journal of an earlier version."""
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            return None
        entries = parse_line(lines[0]) if len(lines) == 1 else None
        if not entries or entries[0].get("kind") != _KIND:
            return None
        entry = entries[0]
        secret = None if entry["secret"] is None else base64.b64decode(entry["secret"])
        return cls(entry["boot"], entry["doubtful_epoch"], entry["end_offset"], secret)

    def write(self, path: Path, *, folder_follows: bool = False) -> None:
        """`folder_follows`: see `replace_file`."""
        entry: JournalEntry = {
            "kind": _KIND,
            "boot": self.boot_id,
            "doubtful_epoch": self.doubtful_epoch,
            "end_offset": self.end_offset,
            "secret": None if self.secret is None else base64.b64encode(self.secret).decode(),
        }
        replace_file(path, format_line(entry), folder_follows=folder_follows, mode=OWNER_ONLY)
