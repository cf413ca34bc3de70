"""Damage in the middle of a metadata log. At its end it may be what a crash left; before whole batches it is not."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from oncelog.core.errors import KafkaError
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.batch import crc_of, iter_headers

_MAGIC: Final = b"\2"
_MAGIC_AT: Final = 16
"""Where a batch has the version of its format."""


class Damage(NamedTuple):
    path: Path
    position: int


def damage_before_the_end(segments: Sequence[Path]) -> Damage | None:
    """`segments` in their order."""
    for path in segments:
        data = path.read_bytes()
        end = _intact_bytes(data)
        if end < len(data) and (path != segments[-1] or _has_batch_behind(data, end)):
            return Damage(path, end)
    return None


def _intact_bytes(data: bytes, position: int = 0) -> int:
    """How far batches are whole, from `position` on."""
    end = position
    with suppress(KafkaError):
        for start, header in iter_headers(data, position):
            if crc_of(data, start, header.size_bytes) != header.crc:
                break
            end = start + header.size_bytes
    return end


def _has_batch_behind(data: bytes, position: int) -> bool:
    magic = data.find(_MAGIC, position + 1 + _MAGIC_AT)
    while magic >= 0:
        start = magic - _MAGIC_AT
        if _intact_bytes(data, start) > start:
            return True
        magic = data.find(_MAGIC, magic + 1)
    return False
