"""The small files of a folder, read without opening them for anything else: indexes, snapshots, checkpoints.

`storage` has classes for the same files, but those are made for a broker, which cuts what it cannot use. Here a file is
read as it is, and everything that is wrong with it is reported.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from oncelog.cluster.journal import parse_line
from oncelog.core.config import ConfigError
from oncelog.core.ids import TopicPartition
from oncelog.core.properties import parse_properties
from oncelog.storage.checkpoint_lines import CorruptCheckpointError
from oncelog.storage.checkpoints import decode_offsets
from oncelog.storage.index_file import count_entries
from oncelog.storage.leader_epochs import EpochStart, decode_epochs
from oncelog.storage.offset_index import OffsetIndex, OffsetPosition
from oncelog.storage.producer_entry import ProducerEntry
from oncelog.storage.producer_snapshot import CorruptSnapshotError, decode_snapshot
from oncelog.storage.time_index import TimeIndex, TimestampEntry
from oncelog.storage.txn_index import ENTRY_SIZE_BYTES, AbortedTxn, decode_entries

Entry = TypeVar("Entry")
T = TypeVar("T")
TxnIndexContent = tuple[list[tuple[int, AbortedTxn]], int]
"""Entries with their versions, and how many bytes follow the last whole one."""


class Unreadable(Exception):
    """The file is not what its name says. The text says why."""


class IndexContent(NamedTuple, Generic[Entry]):
    """Entries up to the zeros of a preallocated file, and how many bytes follow the last whole entry."""

    entries: list[Entry]
    odd_bytes: int
    is_padded: bool


def read_offset_index(path: Path, base_offset: int) -> IndexContent[OffsetPosition]:
    fields, odd_bytes, is_padded = _read_index(path, OffsetIndex.entry_format)
    found = [OffsetPosition(base_offset + relative, position) for relative, position in fields]
    return IndexContent(found, odd_bytes, is_padded)


def read_time_index(path: Path, base_offset: int) -> IndexContent[TimestampEntry]:
    fields, odd_bytes, is_padded = _read_index(path, TimeIndex.entry_format)
    found = [TimestampEntry(timestamp, base_offset + relative) for timestamp, relative in fields]
    return IndexContent(found, odd_bytes, is_padded)


def _read_index(path: Path, entry_format: struct.Struct) -> tuple[Iterator[tuple[int, ...]], int, bool]:
    data, size = path.read_bytes(), entry_format.size
    room, odd_bytes = divmod(len(data), size)
    count = count_entries(room, lambda number: not any(data[number * size : (number + 1) * size]))
    is_padded = count < room
    return entry_format.iter_unpack(data[: count * size]), 0 if is_padded else odd_bytes, is_padded


def read_txn_index(path: Path) -> TxnIndexContent:
    data = path.read_bytes()
    odd_bytes = len(data) % ENTRY_SIZE_BYTES
    return list(decode_entries(data[: len(data) - odd_bytes])), odd_bytes


def read_snapshot(path: Path) -> list[ProducerEntry]:
    return _decoded(path, decode_snapshot)


def read_epochs(path: Path) -> list[EpochStart]:
    """An empty file, which Kafka leaves where nothing was ever written, has no epochs."""
    return _decoded(path, lambda content: decode_epochs(content) if content else [])


def read_checkpoint(path: Path) -> dict[TopicPartition, int]:
    return _decoded(path, decode_offsets)


def read_properties(path: Path) -> dict[str, str]:
    """`meta.properties` and `partition.metadata`, without the comments."""
    return _decoded(path, lambda content: parse_properties(content.decode()))


def read_json_file(path: Path) -> dict[str, Any]:
    content = _decoded(path, lambda content: json.loads(content or b"{}"))
    if not isinstance(content, dict):
        raise Unreadable(f"expected a JSON object, found {type(content).__name__}")
    return content


def _decoded(path: Path, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(path.read_bytes())
    except json.JSONDecodeError as error:
        raise Unreadable(f"it is not JSON: {error}") from error
    except (CorruptSnapshotError, CorruptCheckpointError, ConfigError, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from error


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The changes in `oncelog-metadata.journal`. Raises Unreadable at the first line that is torn or damaged."""
    *lines, rest = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        changes = parse_line(line)
        if changes is None:
            raise Unreadable(f"line {number} is torn or damaged")
        yield from changes
    if rest:
        raise Unreadable(f"line {len(lines) + 1} is torn or damaged")
