"""Parsing of times, durations, ranges and partitions on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from oncelog.core.ids import TopicPartition

if TYPE_CHECKING:
    from oncelog.monitoring.positions import Position

OFFSET_DIGITS_MAX: Final = 12
"""A longer number is a time in milliseconds."""
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def duration_ms(text: str) -> int:
    """`250ms`, `10s`, `5m`, `2h`, `1d`; a plain number is seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is not None:
        return int(float(match[1]) * _UNITS_MS[match[2]])
    try:
        return int(float(text) * 1000)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a duration such as 30s, 5m or 2h") from None


def state_names(texts: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """States in the spelling of brokers, which return nothing for an unknown state."""
    names = {name.lower(): name for name in known}
    for text in texts:
        if text.lower() not in names:
            raise click.BadParameter(f"{text!r} is not a state; there are {', '.join(names.values())}")
    return tuple(names[text.lower()] for text in texts)


def time_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970: given as such, as a date and time (UTC unless it says otherwise), or as `-10m`: ago."""
    text = text.strip()
    if text.startswith("-"):
        return now_ms - duration_ms(text[1:])
    if text == "now":
        return now_ms
    if text.isdigit() and len(text) > 8:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time: write 2026-01-31T12:00, milliseconds since 1970, or -10m for ten minutes ago"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def position(text: str, now_ms: int) -> Position:
    """`earliest`, `latest`, an offset, a time, or `+N` and `-N` for a relative position."""
    from oncelog.monitoring.positions import Position, PositionKind

    if text in ("earliest", "latest"):
        return Position(PositionKind(text))
    if text[:1] in "+-" and text[1:].isdigit():
        return Position(PositionKind.RELATIVE, int(text))
    if text.isdigit() and len(text) <= OFFSET_DIGITS_MAX:
        return Position(PositionKind.OFFSET, int(text))
    return Position(PositionKind.TIME_MS, time_ms(text, now_ms))


def split_range(text: str) -> tuple[str, str]:
    """`A..B`, `A..`, `..B`, or `A` alone for `A..A`."""
    low, dots, high = text.partition("..")
    return (low.strip(), high.strip()) if dots else (text.strip(), text.strip())


def offset_range(text: str) -> tuple[int | None, int | None]:
    low, high = split_range(text)
    try:
        found = (int(low) if low else None, int(high) if high else None)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a range of offsets such as 100..200, 100.. or ..200") from None
    if found[0] is not None and found[1] is not None and found[0] > found[1]:
        raise click.BadParameter(f"{text!r} ends before it begins")
    return found


def time_range(text: str, now_ms: int) -> tuple[int | None, int | None]:
    low, high = split_range(text) if ".." in text else (text, "")
    return (time_ms(low, now_ms) if low else None, time_ms(high, now_ms) if high else None)


def topic_and_partitions(text: str) -> tuple[str, list[int] | None]:
    """`orders` for all partitions, `orders:3` or `orders:0,2` for some."""
    topic, colon, numbers = text.rpartition(":")
    if not colon:
        return text, None
    try:
        return topic, [int(number) for number in numbers.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected TOPIC or TOPIC:PARTITION[,PARTITION]") from None


def partition_name(text: str) -> TopicPartition:
    """`orders:3`, or as folders are named, `orders-3`."""
    for separator in (":", "-"):
        topic, found, number = text.rpartition(separator)
        if found and number.isdigit() and topic:
            return TopicPartition(topic, int(number))
    raise click.BadParameter(f"{text!r}: expected TOPIC:PARTITION")
