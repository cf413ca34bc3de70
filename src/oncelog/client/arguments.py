"""What callers give, checked in the call that is given it: later nobody could tell whose mistake it was."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from typing import Any, Final, TypeVar

from oncelog.core.ids import TopicPartition

T = TypeVar("T")
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OFFSET_MAX: Final = 2**63 - 1


def is_topic_name(text: str) -> bool:
    return _TOPIC.fullmatch(text) is not None and text not in (".", "..")


def check_topic(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no topic: names of topics are text")


def list_of(what: str, given: Iterable[T]) -> list[T]:
    """Not the letters of a single name."""
    if isinstance(given, str | bytes):
        raise TypeError(f"{what} are {given!r}: give a list")
    return list(given)


def topic_names(names: Iterable[str]) -> frozenset[str]:
    found = frozenset(list_of("topics", names))
    for name in found:
        check_topic(name)
        if not is_topic_name(name):
            raise ValueError(f"{name!r} cannot be the name of a topic; for a regular expression give pattern=")
    return found


def setting_text(name: str, value: object) -> str:
    if not isinstance(value, str | bool | int | float):
        raise TypeError(f"the setting {name} is a {type(value).__name__}: give its value as text")
    return str(value).lower() if isinstance(value, bool) else str(value)


def whole(name: str, value: Any, advice: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a {type(value).__name__}: {advice}") from None


def to_partition(given: Any) -> TopicPartition:
    """Of a TopicPartition, or of a pair like it."""
    if not isinstance(given, tuple | list) or len(given) != 2 or not isinstance(given[0], str):
        raise TypeError(f"{given!r} is no partition: give TopicPartition(topic, number), one or a list of them")
    number = whole(f"the partition of {given[0]}", given[1], "give a whole number")
    if number < 0:
        raise ValueError(f"partition {number} of {given[0]}: numbers of partitions begin at 0")
    return TopicPartition(given[0], number)


def to_offset(given: Any) -> int:
    number = whole("the offset", given, "give a whole number")
    if not 0 <= number <= _OFFSET_MAX:
        raise ValueError(f"there is no offset {number}: offsets begin at 0 and have 63 bits")
    return number
