"""Work that may block runs away from the thread that owns the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from oncelog.core.promise import Promise

T = TypeVar("T")


class Worker(Protocol):
    """Runs what may take long (fsync, recovery, deletes) away from the state's thread and hands back the result."""

    def run(self, job: Callable[[], T]) -> Promise[T | Exception]: ...


class InlineWorker:
    """Runs jobs at once: for simulations and tests."""

    def run(self, job: Callable[[], T]) -> Promise[T | Exception]:
        try:
            return Promise.resolved(job())
        except Exception as error:  # noqa: BLE001  the caller decides what a failed job means
            return Promise.resolved(error)
