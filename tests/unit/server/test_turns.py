"""Long work gives others their turn, and is given up when nobody waits for it any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog.core.promise import Promise
from oncelog.core.steps import at_once
from oncelog.server.context import HANG_UP, Peer
from oncelog.server.memory_budget import MemoryBudget
from oncelog.server.turns import FIRST_SLICES, FIRST_SLICES_MS_MAX, SLICE_MS, Steps, Turns, one_by_one


class Loop:
    """A clock that goes on when it is told to, and calls for the next turns."""

    def __init__(self) -> None:
        self.time_ms = 0
        self.calls: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms

    def call_later_ms(self, _: int, callback: Callable[[], None]) -> None:
        self.calls.append(callback)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def budget(loop: Loop) -> MemoryBudget:
    return MemoryBudget(1_000, loop)  # type: ignore[arg-type]


@pytest.fixture
def turns(loop: Loop, budget: MemoryBudget) -> Turns:
    return Turns(loop, budget)  # type: ignore[arg-type]


class Client:
    """Holds what is made for it, until it is closed."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.peer = peer()
        self.peer.add_work_bytes = self._add
        self._budget = budget
        self.held_bytes = 0

    def _add(self, work_bytes: int) -> None:
        self.held_bytes += work_bytes
        self._budget.hold(self, self.held_bytes)

    def take(self, _: object = None) -> None:
        self._budget.hold(self, 0)

    def go_on(self) -> None:
        raise AssertionError("it receives nothing")

    def give_up(self, reason: str) -> None:
        assert "oncelog.connections.max.bytes" in reason
        self.peer.connected = False


def peer() -> Peer:
    return Peer("127.0.0.1", "127.0.0.1")


def work(loop: Loop, count: int, log: list[str], name: str) -> Steps[str]:
    for _ in range(count):
        loop.time_ms += 1
        log.append(name)
        yield
    return f"{name} is done"


def building(loop: Loop, count: int, log: list[str], name: str, step_bytes: int) -> Steps[str]:
    for _ in range(count):
        loop.time_ms += 1
        log.append(name)
        yield step_bytes
    return f"{name} is done"


def test_while_memory_is_short_answers_are_made_one_after_the_other(
    loop: Loop, turns: Turns, budget: MemoryBudget
) -> None:
    log: list[str] = []
    clients = {name: Client(budget) for name in "abcd"}
    promises = {
        name: turns.run(building(loop, 10, log, name, 50), client.peer)
        for name, client in clients.items()
        if name != "d"
    }
    promises["d"] = turns.run(work(loop, 10, log, "d"), clients["d"].peer)
    for name, promise in promises.items():
        assert isinstance(promise, Promise)
        promise.then(clients[name].take)
    log.clear()
    most_bytes = 0
    while loop.calls:
        loop.turn()
        most_bytes = max(most_bytes, budget.held_bytes)
    assert all(isinstance(promise, Promise) and promise.done for promise in promises.values())
    assert log.index("d") < 5, "what makes no answer goes on meanwhile"
    assert most_bytes < budget.max_bytes, "all of them would be 1500"
    assert not budget.closed_connections


def test_an_answer_beyond_the_budget_is_given_up(loop: Loop, turns: Turns, budget: MemoryBudget) -> None:
    small, large = Client(budget), Client(budget)
    log: list[str] = []
    kept = turns.run(building(loop, 8, log, "small", 50), small.peer)
    given_up = turns.run(building(loop, 100, log, "large", 200), large.peer)
    while loop.calls:
        loop.turn()
    assert isinstance(kept, Promise)
    assert isinstance(given_up, Promise)
    assert (kept.value, given_up.value) == ("small is done", HANG_UP)
    assert budget.closed_connections == 1
    assert log.count("large") < 10


def test_paused_work_of_whoever_is_closed_is_given_up_at_once(loop: Loop, turns: Turns, budget: MemoryBudget) -> None:
    largest, growing = Client(budget), Client(budget)
    log: list[str] = []
    first = turns.run(building(loop, 50, log, "growing", 60), growing.peer)
    paused = turns.run(building(loop, 10, log, "largest", 250), largest.peer)
    while not budget.closed_connections:
        loop.turn()
    assert isinstance(first, Promise)
    assert isinstance(paused, Promise)
    assert paused.done
    assert not first.done


def test_short_work_is_done_at_once(loop: Loop, turns: Turns) -> None:
    assert turns.run(work(loop, FIRST_SLICES * SLICE_MS - 1, [], "a"), peer()) == "a is done"
    loop.turn()
    assert not loop.calls


def test_many_who_ask_in_one_turn_have_first_slices_in_several(loop: Loop, turns: Turns) -> None:
    log: list[str] = []
    many = 50
    first_slice_ms = FIRST_SLICES * SLICE_MS
    asked = [turns.run(work(loop, first_slice_ms + 3, log, f"{number}"), peer()) for number in range(many)]
    assert loop.time_ms <= many + FIRST_SLICES_MS_MAX + first_slice_ms, "a first step each, and some first slices"
    brief = turns.run(work(loop, first_slice_ms, log, "brief"), peer())
    assert isinstance(brief, Promise)
    while not brief.done:
        before_ms = loop.time_ms
        loop.turn()
        assert loop.time_ms - before_ms <= FIRST_SLICES_MS_MAX + first_slice_ms + SLICE_MS
    done = [promise.done for promise in asked if isinstance(promise, Promise)]
    assert len(done) == many
    assert sum(done) < many // 4, "what is brief does not wait for what is long"
    while loop.calls:
        loop.turn()
    assert {promise.value for promise in asked if isinstance(promise, Promise)} == {f"{n} is done" for n in range(many)}


def test_first_slices_of_one_turn_do_not_count_in_the_next(loop: Loop, turns: Turns) -> None:
    for _ in range(20):
        assert turns.run(work(loop, FIRST_SLICES * SLICE_MS, [], "a"), peer()) == "a is done"
        loop.turn()


def test_long_work_of_several_takes_turns_one_slice_each(loop: Loop, turns: Turns) -> None:
    log: list[str] = []
    first = turns.run(work(loop, (FIRST_SLICES + 2) * SLICE_MS, log, "a"), peer())
    second = turns.run(work(loop, (FIRST_SLICES + 2) * SLICE_MS, log, "b"), peer())
    assert isinstance(first, Promise)
    assert isinstance(second, Promise)
    while loop.calls:
        before = loop.time_ms
        loop.turn()
        assert loop.time_ms - before <= SLICE_MS
    assert (first.value, second.value) == ("a is done", "b is done")
    slices = [
        FIRST_SLICES * SLICE_MS + 1,
        SLICE_MS,
        SLICE_MS - 1,
    ]  # the first step is free: the clock is not asked before it
    assert log == [name for size in slices for name in "a" * size + "b" * size]


def test_work_that_begins_where_other_work_ends_takes_one_slice_each(loop: Loop, turns: Turns) -> None:
    first = turns.run(work(loop, (FIRST_SLICES + 2) * SLICE_MS, [], "a"), peer())
    assert isinstance(first, Promise)
    first.then(lambda _: turns.begin(work(loop, (FIRST_SLICES + 4) * SLICE_MS, [], "b"), peer()))
    while loop.calls:
        assert len(loop.calls) == 1
        loop.turn()


def test_work_of_a_client_that_has_gone_is_given_up(loop: Loop, turns: Turns) -> None:
    log: list[str] = []
    client = peer()
    steps = work(loop, (FIRST_SLICES + 2) * SLICE_MS, log, "a")
    turns.run(steps, client)
    client.connected = False
    loop.turn()
    assert not loop.calls
    assert len(log) == FIRST_SLICES * SLICE_MS + 1
    assert steps.gi_frame is None, "it is closed"


def test_what_fails_in_a_later_turn_closes_its_connection_alone(loop: Loop, turns: Turns) -> None:
    def failing() -> Steps[str]:
        yield from work(loop, FIRST_SLICES * SLICE_MS + 1, [], "a")
        raise ValueError("a fault")

    answer = turns.run(failing(), peer())
    other = turns.run(work(loop, FIRST_SLICES * SLICE_MS + 2, [], "b"), peer())
    while loop.calls:
        loop.turn()
    assert isinstance(answer, Promise)
    assert isinstance(other, Promise)
    assert (answer.value, other.value) == (HANG_UP, "b is done")


def test_a_promise_at_the_end_is_waited_for(loop: Loop, turns: Turns) -> None:
    later: Promise[str] = Promise()

    def waiting() -> Steps[Promise[str]]:
        yield from work(loop, FIRST_SLICES * SLICE_MS + 1, [], "a")
        return later

    answer = turns.run(waiting(), peer())
    loop.turn()
    assert isinstance(answer, Promise)
    assert not answer.done
    later.resolve("now")
    assert answer.value == "now"


def test_one_by_one() -> None:
    assert at_once(one_by_one(str, [1, 2])) == ["1", "2"]


def test_work_behind_a_wait_that_fails_at_once_closes_its_connection_and_disturbs_nobody(turns: Turns) -> None:
    def failing() -> Steps[None]:
        raise RuntimeError("injected")
        yield

    assert turns.begin(failing(), peer()).value is HANG_UP
