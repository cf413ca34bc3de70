"""The offset checkpoint files of a data folder: one offset per partition.

    0                     version
    2                     number of entries
    orders 0 1500         topic, partition, offset
    orders 1 1342

Lines end with a newline and fields are separated by blanks. A file is replaced as a whole. Reading fails on another
version, a malformed line or a wrong count, because half a checkpoint would silently move offsets; an empty file is an
empty map.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from oncelog.core.ids import TopicPartition
from oncelog.storage.atomic_file import replace_file

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
"""Up to where each log has been fsynced: after a crash, what follows is read again and checked."""
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
"""First offset of each compacted log that the cleaner has not seen."""

_VERSION: Final = "0"


class CorruptCheckpointError(Exception):
    """A checkpoint file that cannot be read as one."""


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [_VERSION, str(len(offsets))]
    lines += [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())]
    return ("\n".join(lines) + "\n").encode()


def decode_offsets(content: bytes) -> dict[TopicPartition, int]:
    lines = content.decode().splitlines()
    if not lines:
        return {}
    if lines[0].strip() != _VERSION or len(lines) < 2:
        raise CorruptCheckpointError(f"starts with {lines[:2]}, expected version {_VERSION} and a count")
    offsets: dict[TopicPartition, int] = {}
    for line in lines[2:]:
        fields = line.split()
        if len(fields) != 3:
            raise CorruptCheckpointError(f"malformed line {line!r}, expected topic, partition and offset")
        offsets[TopicPartition(fields[0], _number(fields[1], line))] = _number(fields[2], line)
    expected = _number(lines[1], lines[1])
    if expected != len(lines) - 2:
        raise CorruptCheckpointError(f"{expected} entries announced, {len(lines) - 2} found")
    return offsets


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """What the file says; nothing if there is no file. CorruptCheckpointError names it."""
    try:
        return decode_offsets(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (CorruptCheckpointError, UnicodeDecodeError) as error:
        raise CorruptCheckpointError(f"{path}: {error}") from error


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    replace_file(path, encode_offsets(offsets))


def _number(text: str, line: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CorruptCheckpointError(f"malformed line {line!r}, {text!r} is not a number") from None
