"""The event loop as the scheduler and worker that the broker's logic asks for."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from oncelog.core.clock import Timer
from oncelog.core.promise import Promise

log = logging.getLogger("oncelog.server")

T = TypeVar("T")


class LoopScheduler:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        if delay_ms <= 0:
            return self._loop.call_soon(callback)
        return self._loop.call_later(delay_ms / 1000, callback)


WORKER_THREADS: Final = 6
"""A cleaning, a checkpoint and an unlinking may each take long; fsyncs that clients wait for must not stand behind."""


class LoopWorker:
    """Jobs and threads do not know the promises: an error knows the frames of its job and all frames around them. If
    these knew who has the error, all that they hold would stay until garbage is collected, which is rare."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = WORKER_THREADS) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="oncelog-worker")
        self._numbers = itertools.count()
        self._promises: dict[int, Promise[Any]] = {}
        self._idle = asyncio.Event()

    def run(self, job: Callable[[], T]) -> Promise[T | Exception]:
        number = next(self._numbers)
        promise: Promise[T | Exception] = Promise()
        self._promises[number] = promise
        self._pool.submit(self._work, number, job)
        return promise

    def _work(self, number: int, job: Callable[[], Any]) -> None:
        self._loop.call_soon_threadsafe(self._deliver, number, _outcome(job))

    def _deliver(self, number: int, result: Any) -> None:
        promise = self._promises.pop(number)
        try:
            promise.resolve(result)
        finally:
            if not self._promises:
                self._idle.set()

    async def until_idle(self) -> None:
        """All jobs are done, those that their results led to as well, and whoever asked for them has the results."""
        while self._promises:
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        self._pool.shutdown(wait=True)


def _outcome(job: Callable[[], T]) -> T | Exception:
    try:
        return job()
    except Exception as error:  # noqa: BLE001  the caller decides what a failed job means
        return error
