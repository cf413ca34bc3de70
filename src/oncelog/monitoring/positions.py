"""Positions in logs, as users name them, and the offsets that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from oncelog.client.admin import Admin
from oncelog.core.ids import TopicPartition
from oncelog.core.time_text import time_ms
from oncelog.monitoring.offsets import PartitionOffsets

OFFSET_DIGITS_MAX: Final = 12
"""A longer number is a time in milliseconds."""


class PositionKind(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME_MS = "time"
    RELATIVE = "relative"
    """A number of offsets or records forward or back; the command says from where."""


@dataclass(frozen=True, slots=True)
class Position:
    kind: PositionKind
    number: int = 0
    """The offset, the time or the distance."""


def parse_position(text: str, now_ms: int) -> Position:
    """`earliest`, `latest`, an offset, a time, or `+N` and `-N` for a relative position. Raises ValueError."""
    if text in ("earliest", "latest"):
        return Position(PositionKind(text))
    if text[:1] in "+-" and text[1:].isdigit():
        return Position(PositionKind.RELATIVE, int(text))
    if text.isdigit() and len(text) <= OFFSET_DIGITS_MAX:
        return Position(PositionKind.OFFSET, int(text))
    return Position(PositionKind.TIME_MS, time_ms(text, now_ms))


def find_offsets(
    admin: Admin,
    position: Position,
    offsets: Mapping[TopicPartition, PartitionOffsets],
    latest: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The offset in each partition. `latest` is used for LATEST, and for times after the last record."""
    match position.kind:
        case PositionKind.EARLIEST:
            return {partition: found.start for partition, found in offsets.items()}
        case PositionKind.LATEST:
            return dict(latest)
        case PositionKind.OFFSET:
            return dict.fromkeys(offsets, position.number)
        case PositionKind.TIME_MS:
            found_at = admin.list_offsets(dict.fromkeys(offsets, position.number))
            return {p: found_at[p].offset if found_at[p].offset >= 0 else latest[p] for p in offsets}
        case PositionKind.RELATIVE:
            raise ValueError("a relative position needs a place to start from")
