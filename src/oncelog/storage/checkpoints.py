"""The offset checkpoint files of a data folder: one offset per partition, in lines of topic, partition and offset.

The form is that of `checkpoint_lines`. A file is replaced as a whole, and an empty one is an empty map.

A digit that has changed makes another checkpoint of the same form: a log start above records that are there, or a
recovery point above what was fsynced. So there is a file of Oncelog's own beside them,
`oncelog-checkpoint-sums`, with the CRC-32C of each. It is written first and names the old content and the new, so that
a crash in between leaves nothing that disagrees. A checkpoint that disagrees is as good as none. Kafka writes no sums,
and leaves those of before where they are: log starts, which are in no other file, are used without a sum as far as they
agree with the logs (see `LogDir`).
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import google_crc32c

from oncelog.core import failpoints
from oncelog.core.ids import TopicPartition
from oncelog.storage.atomic_file import replace_file
from oncelog.storage.checkpoint_lines import CorruptCheckpointError, decode_lines, encode_lines

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
"""Up to where each log has been fsynced: after a crash, what follows is read again and checked."""
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
"""First offset of each compacted log that the cleaner has not seen."""
SUMS: Final = "oncelog-checkpoint-sums"

_SUMS_VERSION: Final = "0"

logger = logging.getLogger("oncelog.storage")


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """In no order, as Kafka writes them: to sort a hundred thousand keeps all other threads from running."""
    return encode_lines(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())


def decode_offsets(content: bytes) -> dict[TopicPartition, int]:
    return dict(decode_lines(content, _parse_offset)) if content else {}


def _parse_offset(fields: list[str]) -> tuple[TopicPartition, int]:
    topic, partition, offset = fields
    return TopicPartition(topic, int(partition)), int(offset)


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """What the file says; nothing if there is no file. CorruptCheckpointError names it."""
    try:
        return decode_offsets(path.read_bytes())
    except FileNotFoundError:
        return {}
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(f"{path}: {error}") from error


class CheckpointFiles:
    """The checkpoints of a data folder. May be written by any thread.

    Offsets are collected by one thread and may be written by another a while later, after fsyncs. They get their number
    when they are collected: what is written meanwhile is newer, and not to be replaced by them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._sums = _read_sums(folder / SUMS)
        """The checksums that the content of each file may have, by file name."""
        self._written: dict[str, int] = {}
        """The checksum of the current content of each file, if it is known."""
        self._numbers = itertools.count(1)
        self._newest: dict[str, int] = {}
        """The number of the current content of each file."""

    def take_number(self) -> int:
        """A number for offsets that are collected now and written later."""
        return next(self._numbers)

    def has_newest(self, number: int, names: Iterable[str]) -> bool:
        """Whether these files have what was written with `number`, and nothing newer."""
        return all(self._newest.get(name) == number for name in names)

    def read(self, name: str, *, needs_sum: bool = True) -> dict[TopicPartition, int]:
        """What the file says; nothing if there is none. CorruptCheckpointError if it is not what was written.

        Without `needs_sum` it may disagree with its checksum, see `has_sum`.
        """
        path = self._folder / name
        offsets = read_offsets(path)
        if path.exists():
            crc = google_crc32c.value(path.read_bytes())
            if crc in self._sums.get(name, (crc,)):
                self._written[name] = crc
            elif needs_sum:
                raise CorruptCheckpointError(
                    f"{path}: its checksum is not in {SUMS}, so it is damaged, or Apache Kafka has written it"
                )
        return offsets

    def has_sum(self, name: str) -> bool:
        """Whether what was read is what was written, and not only of the right form."""
        return name in self._sums and name in self._written

    def write(self, offsets_by_name: Mapping[str, Mapping[TopicPartition, int]], number: int | None = None) -> None:
        """Replace these files, one after the other, in the order given, except those that have something newer.

        Without a number the offsets are those of this moment.
        """
        number = self.take_number() if number is None else number
        contents = {name: encode_offsets(offsets) for name, offsets in offsets_by_name.items()}
        with self._lock:
            contents = {name: content for name, content in contents.items() if self._newest.get(name, 0) < number}
            self._announce({name: google_crc32c.value(content) for name, content in contents.items()})
            for name, content in contents.items():
                failpoints.hit(f"checkpoint.{name}")
                replace_file(self._folder / name, content)
                self._written[name] = google_crc32c.value(content)
                self._newest[name] = number

    def _announce(self, crcs: Mapping[str, int]) -> None:
        sums = dict(self._sums)
        for name, crc in crcs.items():
            before = self._written.get(name)
            sums[name] = (crc,) if before is None or before == crc else (before, crc)
        if any(crc not in self._sums.get(name, ()) for name, crc in crcs.items()):
            failpoints.hit(f"checkpoint.{SUMS}")
            replace_file(self._folder / SUMS, _encode_sums(sums))
            self._sums = sums


def _encode_sums(sums: Mapping[str, tuple[int, ...]]) -> bytes:
    """The first line has the version and the sum of all others, so that damage to sums is not taken for another's."""
    lines = [" ".join([name, *(f"{crc:08x}" for crc in crcs)]) + "\n" for name, crcs in sorted(sums.items())]
    rest = "".join(lines).encode()
    return f"{_SUMS_VERSION} {google_crc32c.value(rest):08x}\n".encode() + rest


def _read_sums(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        first, _, rest = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return {}
    if first != f"{_SUMS_VERSION} {google_crc32c.value(rest):08x}".encode():
        logger.warning("ignoring %s: its first line is not the checksum of the others", path)
        return {}
    lines = [line.split() for line in rest.decode().splitlines()]
    return {name: tuple(int(crc, 16) for crc in crcs) for name, *crcs in lines}
