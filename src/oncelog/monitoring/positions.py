"""Positions in logs, as users name them, and the offsets that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from oncelog.client.admin import Admin
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import TopicPartition
from oncelog.core.time_text import time_ms
from oncelog.monitoring.offsets import PartitionOffsets

OFFSET_DIGITS_MAX: Final = 12
"""A longer number is a time in milliseconds."""
OFFSET_MAX: Final = (1 << 63) - 1


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
        return Position(PositionKind.RELATIVE, _within(int(text), -OFFSET_MAX, "number of offsets", text))
    if text.isdigit() and len(text) <= OFFSET_DIGITS_MAX:
        return Position(PositionKind.OFFSET, int(text))
    # Negative times have meanings of their own in the protocol: -1 is the end of a log.
    return Position(PositionKind.TIME_MS, _within(time_ms(text, now_ms), 0, "time since 1970", text))


def _within(number: int, low: int, what: str, text: str) -> int:
    if not low <= number <= OFFSET_MAX:
        raise ValueError(f"{text!r} is no {what} that a cluster knows")
    return number


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
