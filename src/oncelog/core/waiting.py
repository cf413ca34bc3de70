"""Waiting for a promise, but not for ever."""

from __future__ import annotations

from typing import TypeVar

from oncelog.core.clock import Scheduler
from oncelog.core.promise import Promise

T = TypeVar("T")


def within(scheduler: Scheduler, delay_ms: int, awaited: Promise[T], otherwise: T) -> Promise[T]:
    """What is promised, or `otherwise` if that takes longer."""
    first: Promise[T] = Promise()

    def settle(value: T) -> None:
        if not first.done:
            first.resolve(value)

    timer = scheduler.call_later_ms(delay_ms, lambda: settle(otherwise))
    first.then(lambda _: timer.cancel())
    awaited.then(settle)
    return first
