"""Long work as a generator: it yields where something else may be done in between, and returns its result."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from oncelog.core.clock import Scheduler

T = TypeVar("T")


def at_once(steps: Generator[Any, None, T]) -> T:
    """Takes all steps in a row, without a turn for others in between."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def take_slice(
    steps: Generator[Any, None, Any], scheduler: Scheduler, slice_ms: int, go_on: Callable[[], None]
) -> bool:
    """Takes steps for so long. Whether that was the end; else `go_on` is called in the next turn of the loop."""
    end_ms = scheduler.monotonic_ms() + slice_ms
    for _ in steps:
        if scheduler.monotonic_ms() >= end_ms:
            scheduler.call_later_ms(0, go_on)
            return False
    return True
