"""Long work gives others their turn, and is given up when nobody waits for it any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog.core.promise import Promise
from oncelog.server.context import HANG_UP, Peer
from oncelog.server.turns import SLICE_MS, Steps, Turns, at_once, one_by_one


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
def turns(loop: Loop) -> Turns:
    return Turns(loop)  # type: ignore[arg-type]


def peer() -> Peer:
    return Peer("127.0.0.1", "127.0.0.1")


def work(loop: Loop, count: int, log: list[str], name: str) -> Steps[str]:
    for _ in range(count):
        loop.time_ms += 1
        log.append(name)
        yield
    return f"{name} is done"


def test_short_work_is_done_at_once(loop: Loop, turns: Turns) -> None:
    assert turns.run(work(loop, SLICE_MS - 1, [], "a"), peer()) == "a is done"
    assert not loop.calls


def test_long_work_of_several_takes_turns_one_slice_each(loop: Loop, turns: Turns) -> None:
    log: list[str] = []
    first = turns.run(work(loop, 3 * SLICE_MS, log, "a"), peer())
    second = turns.run(work(loop, 3 * SLICE_MS, log, "b"), peer())
    assert isinstance(first, Promise)
    assert isinstance(second, Promise)
    while loop.calls:
        before = loop.time_ms
        loop.turn()
        assert loop.time_ms - before <= SLICE_MS
    assert (first.value, second.value) == ("a is done", "b is done")
    assert log == (["a"] * SLICE_MS + ["b"] * SLICE_MS) * 3


def test_work_of_a_client_that_has_gone_is_given_up(loop: Loop, turns: Turns) -> None:
    log: list[str] = []
    client = peer()
    steps = work(loop, 3 * SLICE_MS, log, "a")
    turns.run(steps, client)
    client.connected = False
    loop.turn()
    assert not loop.calls
    assert len(log) == SLICE_MS
    assert steps.gi_frame is None, "it is closed"


def test_what_fails_in_a_later_turn_closes_its_connection_alone(loop: Loop, turns: Turns) -> None:
    def failing() -> Steps[str]:
        yield from work(loop, SLICE_MS, [], "a")
        raise ValueError("a fault")

    answer = turns.run(failing(), peer())
    other = turns.run(work(loop, SLICE_MS + 1, [], "b"), peer())
    while loop.calls:
        loop.turn()
    assert isinstance(answer, Promise)
    assert isinstance(other, Promise)
    assert (answer.value, other.value) == (HANG_UP, "b is done")


def test_a_promise_at_the_end_is_waited_for(loop: Loop, turns: Turns) -> None:
    later: Promise[str] = Promise()

    def waiting() -> Steps[Promise[str]]:
        yield from work(loop, SLICE_MS, [], "a")
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
