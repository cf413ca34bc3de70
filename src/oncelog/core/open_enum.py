"""Numbers of an enum that another program sends, and that this version may not know yet."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

E = TypeVar("E", bound=IntEnum)


def member_of(kind: type[E], number: int) -> E:
    """The member with this number; for a number that is not known, a value of its own, named UNKNOWN_ and the number.

    It is no member: those who go through the enum do not see it, and `kind(number)` refuses the number as before.
    """
    try:
        return kind(number)
    except ValueError:
        unknown = int.__new__(kind, number)
        unknown._name_ = f"UNKNOWN_{number}"
        unknown._value_ = number
        return unknown
