from __future__ import annotations

import pytest

from oncelog.core.invariant import InvariantError
from oncelog.core.promise import Promise, gather


def test_callbacks_run_at_once_and_in_order() -> None:
    promise: Promise[int] = Promise()
    seen: list[str] = []
    promise.then(lambda value: seen.append(f"a{value}"))
    promise.then(lambda value: seen.append(f"b{value}"))
    promise.resolve(1)
    promise.then(lambda value: seen.append(f"c{value}"))
    assert seen == ["a1", "b1", "c1"]


def test_resolving_twice_is_a_bug() -> None:
    promise = Promise.resolved(1)
    with pytest.raises(InvariantError):
        promise.resolve(2)


def test_reading_an_unresolved_value_is_a_bug() -> None:
    with pytest.raises(InvariantError):
        _ = Promise[int]().value


def test_gather_waits_for_the_last_and_keeps_the_order() -> None:
    first: Promise[int] = Promise()
    second: Promise[int] = Promise()
    together = gather([first, Promise.resolved(7), second])
    second.resolve(3)
    assert not together.done
    first.resolve(1)
    assert together.value == [1, 7, 3]
    assert gather([]).value == []


def test_map_of_a_pending_promise() -> None:
    promise: Promise[int] = Promise()
    doubled = promise.map(lambda value: value * 2)
    assert not doubled.done
    promise.resolve(21)
    assert doubled.value == 42


def test_chain_waits_for_both_promises() -> None:
    first: Promise[int] = Promise()
    second: Promise[str] = Promise()
    asked: list[int] = []

    def then(value: int) -> Promise[str]:
        asked.append(value)
        return second

    chained = first.chain(then)
    assert asked == []
    first.resolve(1)
    assert asked == [1]
    assert not chained.done
    second.resolve("done")
    assert chained.value == "done"
    assert first.chain(then) is second, "nothing is left to wait for"
