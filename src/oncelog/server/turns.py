"""Long work in slices, so that one client's request does not keep the others waiting.

A handler that goes through many things is a generator: it yields after each of them and returns its answer. What is
done within a slice costs no turn of the loop. What is not goes on in the next turns, one slice for all such requests
together in each. Work of a client that has gone is given up at a yield, unless it is to be done to its end: a producer
that asks for no answer may close its connection as soon as everything is sent.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from oncelog.core.clock import Scheduler
from oncelog.core.promise import Promise
from oncelog.server.context import HANG_UP, HangUp, Peer

log = logging.getLogger("oncelog.server")

A = TypeVar("A")
T = TypeVar("T")
Steps = Generator[None, None, T]
SLICE_MS: Final = 5


def one_by_one(answer: Callable[[A], T], items: Iterable[A]) -> Steps[list[T]]:
    """The answers for all of the items."""
    answers: list[T] = []
    for item in items:
        answers.append(answer(item))
        yield
    return answers


def at_once(steps: Steps[T]) -> T:
    """Without a turn for others: for what is known to be short."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


class _Unfinished(NamedTuple):
    steps: Steps[Any]
    peer: Peer
    promise: Promise[Any]
    to_the_end: bool


class Turns:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._unfinished: deque[_Unfinished] = deque()

    def run(self, steps: Steps[T], peer: Peer, *, to_the_end: bool = False) -> T | Promise[T | HangUp]:
        """What the steps return, or a promise of it. One that fails in a later turn can only close its connection."""
        try:
            self._run_slice(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        promise: Promise[T | HangUp] = Promise()
        self._unfinished.append(_Unfinished(steps, peer, promise, to_the_end))
        if len(self._unfinished) == 1:
            self._scheduler.call_later_ms(0, self._take_turn)
        return promise

    def begin(self, steps: Steps[Any], peer: Peer, *, to_the_end: bool = False) -> Promise[Any]:
        """As `run`, for work that goes on after a wait: its error is not for whoever has ended the wait."""
        done: Any
        try:
            done = self.run(steps, peer, to_the_end=to_the_end)
        except Exception:
            log.exception("a request from %s failed; its connection is closed", peer.client_host)
            done = HANG_UP
        return done if isinstance(done, Promise) else Promise.resolved(done)

    def stop(self) -> None:
        """The broker has stopped: what is not finished is not done."""
        for work in self._unfinished:
            work.steps.close()
        self._unfinished.clear()

    def _run_slice(self, steps: Steps[Any]) -> None:
        end_ms = self._scheduler.monotonic_ms() + SLICE_MS
        next(steps)
        while self._scheduler.monotonic_ms() < end_ms:
            next(steps)

    def _take_turn(self) -> None:
        if not self._unfinished:
            return
        work = self._unfinished.popleft()
        try:
            self._go_on(work)
        finally:
            if self._unfinished:
                self._scheduler.call_later_ms(0, self._take_turn)

    def _go_on(self, work: _Unfinished) -> None:
        if not work.peer.connected and not work.to_the_end:
            work.steps.close()
            work.promise.resolve(HANG_UP)
            return
        try:
            self._run_slice(work.steps)
        except StopIteration as done:
            if isinstance(done.value, Promise):
                done.value.then(work.promise.resolve)
            else:
                work.promise.resolve(done.value)
        except Exception:
            log.exception("a request from %s failed; its connection is closed", work.peer.client_host)
            work.promise.resolve(HANG_UP)
        else:
            self._unfinished.append(work)
