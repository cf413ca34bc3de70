"""The event loop as the scheduler and worker that the broker's logic asks for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

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
    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = WORKER_THREADS) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="oncelog-worker")
        self._jobs = 0
        self._idle = asyncio.Event()

    def run(self, job: Callable[[], T]) -> Promise[T | Exception]:
        promise: Promise[T | Exception] = Promise()

        def work() -> None:
            try:
                result: T | Exception = job()
            except Exception as error:  # noqa: BLE001  the caller decides what a failed job means
                result = error
            self._loop.call_soon_threadsafe(self._deliver, promise, result)

        self._jobs += 1
        self._pool.submit(work)
        return promise

    def _deliver(self, promise: Promise[T], result: T) -> None:
        self._jobs -= 1
        try:
            promise.resolve(result)
        finally:
            if not self._jobs:
                self._idle.set()

    async def until_idle(self) -> None:
        """All jobs are done, those that their results led to as well, and whoever asked for them has the results."""
        while self._jobs:
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        self._pool.shutdown(wait=True)
