"""One background event loop per process, for blocking calls.

Every blocking call of the client hands a coroutine to this loop and waits for its result, so that the same core serves
asyncio programs, plain threads and Spark tasks. A forked child starts a loop of its own: threads do not survive a fork,
and a loop that only looks alive would wait for ever.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


END_TIMEOUT_S = 5.0


class LoopThread:
    """An event loop that runs on a daemon thread until the interpreter ends."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="oncelog-client", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of the coroutine. An interrupted wait cancels it."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a blocking call of oncelog.client was made on its own event loop: await the async one")
        if self._ended and self._may_run_here():
            return self.loop.run_until_complete(coroutine)
        if self._ended or sys.is_finalizing():
            # The thread runs no more, and nobody would ever answer.
            coroutine.close()
            raise RuntimeError("a blocking call of oncelog.client was made while the interpreter ends: close it before")
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _may_run_here(self) -> bool:
        """Whether the interpreter is still at what `atexit` knows of. Handlers that are older than this module come
        after its own: that of `logging`, whose handlers may write to a topic."""
        is_main = threading.current_thread() is threading.main_thread()
        return is_main and not sys.is_finalizing() and not self._thread.is_alive()

    def end(self) -> None:
        """Wait until nothing runs on the loop any more. A loop in the middle of a long call is left to itself."""
        self._ended = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(END_TIMEOUT_S)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed; it roughly halves the cost of a request."""
    with contextlib.suppress(ImportError):
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()


_lock = threading.Lock()
_thread: LoopThread | None = None


def background() -> LoopThread:
    """The loop of this process, started by the first call."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = LoopThread()
        return _thread


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return background().run(coroutine)


def _end() -> None:
    """A daemon thread lives as long as the process, and one that comes back from C code when the interpreter is gone
    already (uvloop's does, for a timer or a connection that the other side closes) ends the process with SIGSEGV."""
    if _thread is not None:
        _thread.end()


def _forget_after_fork() -> None:
    global _lock, _thread
    _lock = threading.Lock()
    _thread = None


atexit.register(_end)
os.register_at_fork(after_in_child=_forget_after_fork)
