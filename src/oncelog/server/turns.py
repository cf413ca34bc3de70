"""Long work in slices, so that one client's request does not keep the others waiting.

A handler that goes through many things is a generator: it yields between them and returns its answer. What is
done within a slice costs no turn of the loop. What is not goes on in the next turns, one slice for all such requests
together in each, behind a few first slices. Work of a client that has gone is given up at a yield, unless it is to be
done to its end: a producer that asks for no answer may close its connection as soon as everything is sent.

A step may yield an estimate of the memory that it has added to the answer. It counts as held by the client. While half
of the memory budget is held, those that add to their answers go on one at a time.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from oncelog.core.dataclass import dataclass
from oncelog.core.promise import Promise
from oncelog.server.context import HANG_UP, HangUp, Peer

if TYPE_CHECKING:
    from oncelog.core.clock import Scheduler
    from oncelog.server.memory_budget import MemoryBudget

log = logging.getLogger("oncelog.server")

A = TypeVar("A")
T = TypeVar("T")
Steps = Generator[Any, None, T]
"""Work in steps. A step yields nothing, or how many bytes it has added to the answer."""
SLICE_MS: Final = 1
FIRST_SLICES: Final = 2
"""So many make up the first slice of a request, so that one of usual size takes no turns."""
ITEM_BYTES: Final = 150
"""Memory of a part of an answer that has a few numbers, or a short text."""
FIRST_SLICES_MS_MAX: Final = 4
"""After so much of them in one turn of the loop, others have their first slices in the next: thousands may ask, or be
woken by one append, at the same moment."""
_ITEMS_PER_STEP: Final = 200


def one_by_one(answer: Callable[[A], T], items: Iterable[A]) -> Steps[list[T]]:
    """The answers for all of the items."""
    answers: list[T] = []
    for item in items:
        if answers:
            yield ITEM_BYTES
        answers.append(answer(item))
    return answers


def in_steps(items: Iterable[A], item_bytes: int = ITEM_BYTES) -> Steps[list[A]]:
    """The items, each of which takes little time to make, and all of them perhaps much."""
    made: list[A] = []
    rest = iter(items)
    while True:
        part = list(islice(rest, _ITEMS_PER_STEP))
        made += part
        if len(part) < _ITEMS_PER_STEP:
            return made
        yield _ITEMS_PER_STEP * item_bytes


def caught(steps: Steps[T]) -> Steps[T | Exception]:
    """What the steps return, or the error that ends them: whoever waits for them decides what it means."""
    try:
        return (yield from steps)
    except Exception as error:  # noqa: BLE001  see above
        return error


@dataclass(slots=True, eq=False)
class _Unfinished:
    steps: Steps[Any]
    peer: Peer
    promise: Promise[Any]
    to_the_end: bool
    is_builder: bool = False
    """Whether it has added to its answer."""
    is_fresh: bool = False
    """Whether its first slice is still to come."""


class Turns:
    def __init__(self, scheduler: Scheduler, budget: MemoryBudget) -> None:
        self._scheduler = scheduler
        self._budget = budget
        self._unfinished: deque[_Unfinished] = deque()
        self._builder: _Unfinished | None = None
        """The one that goes on while memory is short."""
        self._paused: deque[_Unfinished] = deque()
        """Others that would add to their answers."""
        self._fresh: deque[_Unfinished] = deque()
        """Those whose first slices did not fit into the turn in which they came."""
        self._first_slices_ms = 0
        """In this turn."""
        self._is_asked = False
        """Whether the loop has been asked for a turn."""

    @property
    def is_crowded(self) -> bool:
        """Whether no more first slices fit into this turn of the loop."""
        return self._first_slices_ms >= FIRST_SLICES_MS_MAX

    def run(self, steps: Steps[T], peer: Peer, *, to_the_end: bool = False) -> T | Promise[T | HangUp]:
        """What the steps return, or a promise of it. One that fails in a later turn can only close its connection."""
        try:
            built_bytes = next(steps) or 0  # what is done by then is short, and the clock is not asked
            is_fresh = self.is_crowded
            if not is_fresh:
                built_bytes += self._run_slice(steps, is_first=True)
        except StopIteration as done:
            result: T = done.value
            return result
        work = _Unfinished(steps, peer, Promise(), to_the_end, is_fresh=is_fresh)
        self._keep(work, built_bytes)
        self._ask_for_turn()
        return work.promise

    def begin(self, steps: Steps[Any], peer: Peer, *, to_the_end: bool = False) -> Promise[Any]:
        """As `run`, for work that goes on after a wait: its error is logged, as the caller has only ended the wait."""
        done: Any
        started_s = time.perf_counter()
        try:
            done = self.run(steps, peer, to_the_end=to_the_end)
        except Exception:
            log.exception("a request from %s failed; its connection is closed", peer.client_host)
            done = HANG_UP
        peer.later_s += time.perf_counter() - started_s
        return done if isinstance(done, Promise) else Promise.resolved(done)

    def stop(self) -> None:
        """The broker has stopped: what is not finished is not done."""
        for work in (*self._fresh, *self._unfinished, *self._paused):
            work.steps.close()
        self._fresh.clear()
        self._unfinished.clear()
        self._paused.clear()

    def _run_slice(self, steps: Steps[Any], *, is_first: bool) -> int:
        """The memory that was added to the answer."""
        monotonic_ms = self._scheduler.monotonic_ms
        start_ms = monotonic_ms()
        end_ms = start_ms + (FIRST_SLICES * SLICE_MS if is_first else SLICE_MS)
        try:
            built_bytes = next(steps) or 0
            while monotonic_ms() < end_ms:
                built_bytes += next(steps) or 0
            return built_bytes
        finally:
            if is_first and (spent_ms := monotonic_ms() - start_ms):
                self._first_slices_ms += spent_ms
                self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        """One in each turn of the loop, also where work that ends has begun other work."""
        if not self._is_asked:
            self._is_asked = True
            self._scheduler.call_later_ms(0, self._take_turn)

    def _take_turn(self) -> None:
        self._is_asked = False
        self._first_slices_ms = 0
        if self._paused and (self._builder is None or not self._budget.is_half_held):
            self._unfinished.appendleft(self._paused.popleft())
        try:
            end_ms = self._scheduler.monotonic_ms() + FIRST_SLICES_MS_MAX
            while self._fresh and self._scheduler.monotonic_ms() < end_ms:
                self._go_on(self._fresh.popleft())
            if self._unfinished:
                self._go_on(self._unfinished.popleft())
        finally:
            if self._fresh or self._unfinished or self._paused:
                self._ask_for_turn()

    def _go_on(self, work: _Unfinished) -> None:
        if self._is_for_nobody(work):
            self._give_up(work)
            return
        is_first, work.is_fresh = work.is_fresh, False
        started_s = time.perf_counter()
        try:
            try:
                built_bytes = self._run_slice(work.steps, is_first=is_first)
            finally:
                work.peer.later_s += time.perf_counter() - started_s
        except StopIteration as done:
            self._forget(work)
            if isinstance(done.value, Promise):
                done.value.then(work.promise.resolve)
            else:
                work.promise.resolve(done.value)
        except Exception:
            log.exception("a request from %s failed; its connection is closed", work.peer.client_host)
            self._forget(work)
            work.promise.resolve(HANG_UP)
        else:
            self._keep(work, built_bytes)

    def _keep(self, work: _Unfinished, built_bytes: int) -> None:
        """Keep what is not finished for a later turn."""
        if built_bytes:
            work.is_builder = True
            work.peer.add_work_bytes(built_bytes)
            if self._budget.is_exceeded:
                self._make_room()
                if self._is_for_nobody(work):
                    self._give_up(work)
                    return
        if work.is_builder and self._budget.is_half_held:
            self._builder = self._builder or work
            if self._builder is not work:
                self._paused.append(work)
                return
        (self._fresh if work.is_fresh else self._unfinished).append(work)

    def _make_room(self) -> None:
        """Close connections, and give up the paused work of their clients, which would keep its memory."""
        self._budget.make_room()
        paused, self._paused = self._paused, deque()
        for work in paused:
            if self._is_for_nobody(work):
                self._give_up(work)
            else:
                self._paused.append(work)

    def _is_for_nobody(self, work: _Unfinished) -> bool:
        return not work.peer.connected and not work.to_the_end

    def _give_up(self, work: _Unfinished) -> None:
        self._forget(work)
        work.steps.close()
        work.promise.resolve(HANG_UP)

    def _forget(self, work: _Unfinished) -> None:
        if work is self._builder:
            self._builder = None
