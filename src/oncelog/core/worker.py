"""Work that may block runs away from the thread that owns the state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from oncelog.core.promise import Promise

T = TypeVar("T")


class Worker(Protocol):
    """Runs what may take long (fsync, recovery, deletes) away from the state's thread and hands back the result."""

    def run(self, job: Callable[[], T]) -> Promise[T | Exception]: ...


class OneAtATime:
    """Hands jobs to a worker one after the other, so that however many there are they take one of its threads."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_busy = False

    def run(self, job: Callable[[], T]) -> Promise[T | Exception]:
        promise: Promise[T | Exception] = Promise()

        def begin() -> None:
            self._is_busy = True
            self._worker.run(job).then(finish)

        def finish(result: T | Exception) -> None:
            self._is_busy = False
            if self._waiting:
                self._waiting.popleft()()
            promise.resolve(result)

        if self._is_busy:
            self._waiting.append(begin)
        else:
            begin()
        return promise


class InlineWorker:
    """Runs jobs at once: for simulations and tests."""

    def run(self, job: Callable[[], T]) -> Promise[T | Exception]:
        try:
            return Promise.resolved(job())
        except Exception as error:  # noqa: BLE001  the caller decides what a failed job means
            return Promise.resolved(error)
