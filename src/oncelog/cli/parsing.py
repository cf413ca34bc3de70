"""Parsing of times, durations, ranges and partitions on the command line."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from oncelog.core import time_text
from oncelog.core.config import did_you_mean
from oncelog.core.ids import TopicPartition

if TYPE_CHECKING:
    from oncelog.monitoring.positions import Position


if TYPE_CHECKING:
    _AnyChoice = click.Choice[str]
else:
    _AnyChoice = click.Choice  # before 8.2 it has no parameter


class Choice(_AnyChoice):
    """One of some words. A word that is like one of them is answered with that one."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            near = did_you_mean(value.lower(), self.choices)
            raise click.BadParameter(error.message.removesuffix(".") + near, ctx, param) from None


class IntRange(click.IntRange):
    """Click calls these an "integer range", and so a word that is no number no valid one."""

    name = "integer"


class FloatRange(click.FloatRange):
    name = "number"


class NewPath(click.Path):
    """A file or folder that need not exist. Click takes '' for the current folder: nobody means that with "$UNSET"."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if value == "":
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


def now_ms() -> int:
    return int(time.time() * 1000)


def duration_ms(text: str, option: str | None = None, *, low: int = 0) -> int:
    """`250ms`, `10s`, `5m`, `2h`, `1d`; a plain number is seconds."""
    with _as_bad_parameter(option):
        found = time_text.duration_ms(text)
        if found < low:
            raise ValueError(f"{text!r} is too short")
        return found


@contextmanager
def _as_bad_parameter(option: str | None = None) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def unescaped(text: str, option: str) -> bytes:
    r"""`\t` and other escapes on a command line stand for what they stand for in Python."""
    try:
        return os.fsencode(text).decode("unicode_escape").encode("latin-1")
    except UnicodeEncodeError:
        raise click.BadParameter(f"{text!r}: only bytes can be escaped, as \\t or \\xff", param_hint=option) from None
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{text!r}: {error.reason}; write \\\\ for a \\", param_hint=option) from None


def state_names(texts: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """States in the spelling of brokers, which return nothing for an unknown state."""
    names = {name.lower(): name for name in known}
    for text in texts:
        if text.lower() not in names:
            near = did_you_mean(text.capitalize(), names.values()) or f"; there are {', '.join(names.values())}"
            raise click.BadParameter(f"{text!r} is not a state{near}")
    return tuple(names[text.lower()] for text in texts)


def time_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970: given as such, as a date and time (UTC unless it says otherwise), or as `-10m`: ago."""
    with _as_bad_parameter():
        return time_text.time_ms(text, now_ms)


def position(text: str, now_ms: int) -> Position:
    """`earliest`, `latest`, an offset, a time, or `+N` and `-N` for a relative position."""
    from oncelog.monitoring.positions import parse_position

    with _as_bad_parameter():
        return parse_position(text, now_ms)


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
