"""`oncelog-segments`: what the transaction index and the time index of each segment must contain.

    0 3 1a2b3c4d 12         base offset; entries of the `.txnindex` and CRC-32C over them; entries of the `.timeindex`
    1500 0 00000000 7

Kafka's formats have no checksum for these, and a transaction index that is missing looks like one that was never
needed. So a note is taken at every flush and clean stop. It says of a segment that is not appended to any more
what is in its files, and of the active one what their first entries are.

The file is not Kafka's, which leaves it alone. It is replaced by renaming and never fsynced. An old one, or none, does
no harm: whatever disagrees with it is compared with the batches, and these are right.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from oncelog.core.named_tuple import NamedTuple
from oncelog.storage.atomic_file import read_file, replace_file
from oncelog.storage.checkpoint_lines import CorruptCheckpointError, decode_lines, encode_lines

FILE_NAME: Final = "oncelog-segments"

logger = logging.getLogger("oncelog.storage")


class SegmentNote(NamedTuple):
    txn_entries: int
    txn_crc: int
    time_entries: int


class SegmentNotes:
    """The notes by base offset. A segment without a note was written by Kafka or by an old version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_base_offset: dict[int, SegmentNote] = {}
        """In ascending order."""
        self._lines: dict[int, str] = {}
        """Of the file. A log may have thousands of segments, of which a flush changes few."""

    @classmethod
    def load(cls, folder: Path) -> SegmentNotes:
        """A damaged file counts as none."""
        notes = cls(folder / FILE_NAME)
        try:
            notes.by_base_offset = dict(sorted(decode_notes(read_file(notes.path)).items()))
        except FileNotFoundError:
            return notes
        except CorruptCheckpointError as error:
            logger.warning("ignoring %s: %s", notes.path, error)
        notes._lines = {base: _line(base, note) for base, note in notes.by_base_offset.items()}
        return notes

    def write(self, changed: Mapping[int, SegmentNote], gone: Collection[int] = ()) -> bool:
        """Whether they are written. If that fails, the old notes stay: nothing is refused because of notes."""
        known = self.by_base_offset
        added = {base: note for base, note in changed.items() if known.get(base) != note}
        removed = [base for base in gone if base in known]
        if not added and not removed:
            return True
        notes = known | added
        lines = self._lines | {base: _line(base, note) for base, note in added.items()}
        for base in removed:
            del notes[base], lines[base]
        ordered = sorted(lines)
        try:
            replace_file(self.path, encode_lines(lines[base] for base in ordered), durable=False)
        except OSError as error:
            logger.warning("%s cannot be written now: %s", self.path, error)
            return False
        self._lines = lines
        self.by_base_offset = {base: notes[base] for base in ordered}
        return True


def _line(base_offset: int, note: SegmentNote) -> str:
    return f"{base_offset} {note.txn_entries} {note.txn_crc:08x} {note.time_entries}"


def decode_notes(content: bytes) -> dict[int, SegmentNote]:
    return dict(decode_lines(content, _parse_note))


def _parse_note(fields: list[str]) -> tuple[int, SegmentNote]:
    base_offset, txn_entries, txn_crc, time_entries = fields
    return int(base_offset), SegmentNote(int(txn_entries), int(txn_crc, 16), int(time_entries))
