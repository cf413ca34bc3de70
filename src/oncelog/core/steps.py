"""Long work as a generator: it yields where something else may be done in between, and returns its result."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")


def at_once(steps: Generator[Any, None, T]) -> T:
    """Takes all steps in a row, without a turn for others in between."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
