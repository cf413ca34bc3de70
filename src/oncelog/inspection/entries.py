"""The small files of a folder, read without opening them for anything else: indexes, snapshots, checkpoints.

`storage` has classes for the same files, but those are made for a broker, which cuts what it cannot use. Here a file is
read as it is and whatever is wrong with it is told.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import google_crc32c

from oncelog.core.ids import TopicPartition
from oncelog.storage.checkpoints import CorruptCheckpointError, decode_offsets
from oncelog.storage.leader_epochs import CorruptLeaderEpochsError, EpochStart, decode_epochs
from oncelog.storage.offset_index import OffsetIndex, OffsetPosition
from oncelog.storage.producer_entry import ProducerEntry
from oncelog.storage.producer_snapshot import CorruptSnapshotError, decode_snapshot
from oncelog.storage.time_index import TimeIndex, TimestampEntry
from oncelog.storage.txn_index import ENTRY_SIZE_BYTES, AbortedTxn

_TXN_ENTRY: Final = struct.Struct(">hqqqq")
_JOURNAL_CRC_CHARS: Final = 8


class Unreadable(Exception):
    """The file is not what its name says. The text says why."""


class IndexContent(NamedTuple):
    """Entries up to the zeros of a preallocated file, and how many bytes follow the last whole entry."""

    offsets: list[OffsetPosition]
    odd_bytes: int
    is_padded: bool


class TimeIndexContent(NamedTuple):
    times: list[TimestampEntry]
    odd_bytes: int
    is_padded: bool


class VersionedAbort(NamedTuple):
    version: int
    aborted: AbortedTxn


def read_offset_index(path: Path, base_offset: int) -> IndexContent:
    data = path.read_bytes()
    size = OffsetIndex.entry_format.size
    whole = data[: len(data) // size * size]
    found: list[OffsetPosition] = []
    for relative, position in OffsetIndex.entry_format.iter_unpack(whole):
        # The first batch of a segment has no entry, so a relative offset of 0 is the filling of a preallocated file.
        if relative == 0:
            return IndexContent(found, 0, True)
        found.append(OffsetPosition(base_offset + relative, position))
    return IndexContent(found, len(data) - len(whole), False)


def read_time_index(path: Path, base_offset: int) -> TimeIndexContent:
    data = path.read_bytes()
    size = TimeIndex.entry_format.size
    whole = data[: len(data) // size * size]
    found: list[TimestampEntry] = []
    for number, (timestamp, relative) in enumerate(TimeIndex.entry_format.iter_unpack(whole)):
        if (timestamp, relative) == (0, 0) and (number or len(whole) > size):
            return TimeIndexContent(found, 0, True)
        found.append(TimestampEntry(timestamp, base_offset + relative))
    return TimeIndexContent(found, len(data) - len(whole), False)


def read_txn_index(path: Path) -> tuple[list[VersionedAbort], int]:
    """The entries, and how many bytes follow the last whole one."""
    data = path.read_bytes()
    whole = data[: len(data) // ENTRY_SIZE_BYTES * ENTRY_SIZE_BYTES]
    found = [VersionedAbort(version, AbortedTxn(*fields)) for version, *fields in _TXN_ENTRY.iter_unpack(whole)]
    return found, len(data) - len(whole)


def read_snapshot(path: Path) -> list[ProducerEntry]:
    try:
        return decode_snapshot(path.read_bytes())
    except CorruptSnapshotError as error:
        raise Unreadable(str(error)) from error


def read_epochs(path: Path) -> list[EpochStart]:
    """An empty file, which Kafka leaves where nothing was ever written, has no epochs."""
    content = path.read_bytes()
    if not content:
        return []
    try:
        return decode_epochs(content)
    except (CorruptLeaderEpochsError, ValueError) as error:
        raise Unreadable(str(error)) from error


def read_checkpoint(path: Path) -> dict[TopicPartition, int]:
    try:
        return decode_offsets(path.read_bytes())
    except (CorruptCheckpointError, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from error


def read_properties(path: Path, separator: str) -> dict[str, str]:
    """`meta.properties` (=) and `partition.metadata` (: ) without the comments."""
    fields: dict[str, str] = {}
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not text: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, found, value = line.partition(separator)
        if not found:
            raise Unreadable(f"line {number} has no {separator.strip()!r}: {line!r}")
        fields[name.strip()] = value.strip()
    return fields


def read_json_file(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes() or b"{}")
    except ValueError as error:
        raise Unreadable(f"it is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise Unreadable(f"expected a JSON object, found {type(content).__name__}")
    return content


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The changes in `oncelog-metadata.journal`. Raises Unreadable at the first line that is torn or damaged."""
    content = path.read_bytes()
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line:
            continue
        crc, _, text = line.partition(b" ")
        try:
            matches = len(crc) == _JOURNAL_CRC_CHARS and int(crc, 16) == google_crc32c.value(text)
            entry = json.loads(text) if matches else None
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            raise Unreadable(f"line {number} is torn or damaged")
        yield entry
