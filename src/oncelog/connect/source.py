"""What a source must offer to be copied exactly once: a position that grows with every commit, and changes after it.

`source_task` drives a source and keeps its position in the log, in the transactions that hold the records:

    resume     what is stored, or nothing: whether to take a snapshot first. Refuses what could lose or repeat something
    snapshot   rows as of one moment, and the position that belongs to it
    stream     changes behind a position, whole transactions in the order of their commits
    confirm    everything up to a position is in the log: the source may forget it

A source with a log of its own fits if places in it are numbers of up to 63 bits that grow with every commit, because a
position is stored as the committed offset of a group: PostgreSQL's LSN is one, and so are the number of MySQL's binary
log file and the place in it, 31 and 32 bits. Resume tokens of MongoDB and sets of GTIDs are not: such a source would
have to count its commits, and to keep what it resumes by in the `Note`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

from oncelog.connect.progress import SnapshotProgress

NOTE_VERSION: Final = 1
Header = tuple[str, bytes | None]


class Note(NamedTuple):
    """What is stored beside a position, so that it is never used where it means nothing."""

    system: str
    """The identity of the database server."""
    timeline: int
    slot: str
    generation: int
    """Of the snapshot: one more for each that was begun."""
    is_snapshot: bool
    """A snapshot was begun and is not complete."""
    instance: str = ""
    """The run of the connector that has stored it."""

    def text(self) -> str:
        return json.dumps({"version": NOTE_VERSION, **self._asdict()})

    @classmethod
    def parse(cls, text: str) -> Note:
        """Raises ValueError."""
        found = json.loads(text)
        names = set(cls._fields)
        if (
            not isinstance(found, dict)
            or found.pop("version", None) != NOTE_VERSION
            or not names - cls._field_defaults.keys() <= found.keys() <= names
        ):
            raise ValueError(f"{text!r} is not the note of a connector, or of a version that is not known here")
        return cls(**found)


class Stored(NamedTuple):
    position: int
    note: Note


class SourceRecord(NamedTuple):
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    timestamp_ms: int
    partition: int | None = None
    """None: by key."""


class SourceCommit(NamedTuple):
    """The end of a transaction of the source. It comes after the records of the transaction."""

    position: int


class Idle(NamedTuple):
    """The stream has come to this position, and there was nothing to copy since the last commit."""

    position: int
    is_urgent: bool
    """The source waits for its confirmation."""


Event = SourceRecord | SourceCommit | Idle


class Resume(NamedTuple):
    """What to do first."""

    snapshot: Note | None
    """The note to store before the snapshot is begun, or None to go on with the stored position."""


class Source(Protocol):
    def resume(self, stored: Stored | None) -> Resume:
        """Raises Refused."""

    def snapshot(self) -> Iterator[SourceRecord]:
        """Take a new snapshot. `snapshot_position` is known afterwards."""

    @property
    def snapshot_position(self) -> int: ...

    @property
    def snapshot_progress(self) -> SnapshotProgress:
        """Changes while the snapshot is read."""

    def stream(self, position: int) -> None:
        """Begin to read behind a position."""

    def read(self, timeout_s: float) -> list[Event]:
        """What is at hand, or comes within the time."""

    def confirm(self, position: int) -> None: ...

    def current_position(self) -> int:
        """The end of the source's log now."""

    @property
    def seen_position(self) -> int:
        """How far the source's log is, as it was last told."""

    def position_text(self, position: int) -> str: ...

    def close(self) -> None: ...


def header(name: str, value: Any) -> Header:
    return name, str(value).encode()
