"""Two registries on one topic: each may write, and no id is given twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncelog.client import Admin, ConnectionLost, Consumer, KafkaError, NewTopic, Producer, TimedOut
from oncelog.core.errors import ErrorCode
from oncelog.registry import decisions
from oncelog.registry.decisions import Decision, Wanted
from oncelog.registry.errors import Refusal
from oncelog.registry.state import State
from oncelog.registry.store import PAUSE_S, PAUSE_S_MAX, Store, WrongTopic
from oncelog.schemas.schema import Schema
from oncelog.testing.broker import BrokerProcess


@pytest.fixture
def stores(fresh_oncelog_broker: BrokerProcess) -> Iterator[list[Store]]:
    client = {"bootstrap.servers": fresh_oncelog_broker.bootstrap_servers}
    with Store(client) as first, Store(client) as second:
        for store in (first, second):
            store.open()
        yield [first, second]


def fixed(size: int) -> Schema:
    return Schema(f'{{"type": "fixed", "name": "F{size}", "size": {size}}}')


def register(store: Store, subject: str, schema: Schema) -> Any:
    return store.change(lambda state: decisions.register(state, Wanted(subject, schema)))


def test_registries_take_turns(stores: list[Store]) -> None:
    ids = [register(stores[turn % 2], f"s{turn}", fixed(turn + 1)).id for turn in range(6)]
    assert ids == [1, 2, 3, 4, 5, 6]
    for store in stores:
        store.refresh()
        assert store.read(State.subjects) == [f"s{turn}" for turn in range(6)]


def test_one_that_is_overtaken_while_it_decides_decides_again(stores: list[Store]) -> None:
    """Between its decision and its commit somebody else gives the same id."""
    first, second = stores
    register(first, "before", fixed(1))
    calls = []

    def decide(state: State) -> Decision:
        decision = decisions.register(state, Wanted("slow", fixed(2)))
        calls.append(decision.answer.id)
        if len(calls) == 2:
            assert register(second, "fast", fixed(3)).id == 2
        return decision

    assert first.change(decide).id == 3
    assert calls[:2] == [2, 2]
    assert second.read(lambda state: state.schema(2)) == first.read(lambda state: state.schema(2))


@pytest.mark.parametrize("code", [ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE])
def test_other_words_for_being_overtaken(stores: list[Store], monkeypatch: pytest.MonkeyPatch, code: ErrorCode) -> None:
    """As if another registry had aborted the transaction, and given its ids, just before the commit."""
    first, second = stores
    register(first, "before", fixed(1))
    commit, calls = Producer.commit_transaction, []

    def overtaken(producer: Producer) -> None:
        calls.append(producer)
        if len(calls) > 1:
            return commit(producer)
        producer.abort_transaction()
        assert register(second, "fast", fixed(3)).id == 2
        raise KafkaError(code, "overtaken")

    monkeypatch.setattr(Producer, "commit_transaction", overtaken)
    assert register(first, "slow", fixed(2)).id == 3
    assert len(calls) == 3


def test_a_commit_that_was_done_before_it_was_overtaken_is_not_decided_again(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if its answer were lost, and another registry had taken over before the client asked again."""
    first, second = stores
    register(first, "gone", fixed(1))
    commit, calls = Producer.commit_transaction, []

    def answer_lost(producer: Producer) -> None:
        commit(producer)
        calls.append(producer)
        if len(calls) == 1:
            assert register(second, "fast", fixed(2)).id == 2
            raise KafkaError(ErrorCode.PRODUCER_FENCED, "overtaken")

    monkeypatch.setattr(Producer, "commit_transaction", answer_lost)
    assert first.change(lambda state: decisions.delete_subject(state, "gone", permanent=False)) == [1]
    assert len(calls) == 2
    assert register(first, "next", fixed(3)).id == 3
    assert first.read(State.subjects) == ["fast", "next"]


def test_pauses_of_one_that_is_overtaken_again_and_again_grow(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or two of them, whose commits take longer than their pauses, would overtake each other for ever."""
    limits: list[float] = []

    def shortest(low: float, high: float) -> float:
        limits.append(high)
        return 0.0

    def overtaken(_: Producer) -> None:
        raise KafkaError(ErrorCode.PRODUCER_FENCED, "overtaken")

    monkeypatch.setattr("oncelog.registry.store.random.uniform", shortest)
    monkeypatch.setattr(Producer, "commit_transaction", overtaken)
    with pytest.raises(Refusal, match="took over 20 times"):
        register(stores[0], "s", fixed(1))
    assert limits == sorted(limits)
    assert limits[:3] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]
    assert limits[-1] == PAUSE_S_MAX


def test_many_at_once_give_every_id_once(stores: list[Store]) -> None:
    found: list[int] = []

    def work(store: Store, start: int) -> None:
        for number in range(start, start + 10):
            found.append(register(store, f"s{number}", fixed(number + 1)).id)

    threads = [threading.Thread(target=work, args=(stores[n % 2], n * 10)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(found) == list(range(1, 41))
    for store in stores:
        store.refresh()
    assert stores[0].read(lambda state: [*state.everything()]) == stores[1].read(lambda state: [*state.everything()])


def test_what_is_there_already_is_found_without_writing(stores: list[Store]) -> None:
    first, second = stores
    known = register(first, "s", fixed(1))
    assert register(second, "s", fixed(1)) == known
    assert second._producer is None


def test_a_topic_that_would_lose_schemas_is_refused(fresh_oncelog_broker: BrokerProcess) -> None:
    client = {"bootstrap.servers": fresh_oncelog_broker.bootstrap_servers}
    with Admin(client) as admin:
        admin.create_topics([NewTopic("by-age", 1), NewTopic("wide", 2, configs={"cleanup.policy": "compact"})])
    for topic, problem in (("by-age", r"cleanup\.policy=delete"), ("wide", "2 partitions")):
        with Store(client, topic) as store, pytest.raises(WrongTopic, match=problem):
            store.open()


def test_a_registry_is_there_again_after_the_broker_was_away(fresh_oncelog_broker: BrokerProcess) -> None:
    patient = {"bootstrap.servers": fresh_oncelog_broker.bootstrap_servers}
    with Store(patient) as store:  # the first transaction makes topics, which takes its time
        store.open()
        first = register(store, "s", fixed(1))
    with Store({**patient, "default.api.timeout.ms": 10_000, "request.timeout.ms": 10_000}) as store:
        store.open()
        fresh_oncelog_broker.kill()
        with pytest.raises(Refusal) as caught:
            store.refresh()
        assert caught.value.status == 500
        assert store.read(lambda state: state.schema(first.id)).text
        fresh_oncelog_broker.start()
        assert until_served(lambda: register(store, "t", fixed(2))).id == 2


def until_served(call: Callable[[], Any]) -> Any:
    """The first calls may take longer than the time that they have, on a busy machine."""
    deadline_s = time.monotonic() + 120
    while True:
        try:
            return call()
        except Refusal:
            if time.monotonic() > deadline_s:
                raise


def test_a_fetch_that_failed_before_a_commit_does_not_make_it_fail(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    poll, failures = Consumer.poll, [TimedOut("while the broker was away"), ConnectionLost("of that time")]

    def failing_poll(consumer: Consumer, **arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return poll(consumer, **arguments)

    monkeypatch.setattr(Consumer, "poll", failing_poll)
    assert register(stores[0], "s", fixed(1)).id == 1
    assert failures == []


def test_schemas_that_are_known_are_served_while_others_wait_for_the_cluster(stores: list[Store]) -> None:
    store, waiting, go_on = stores[0], threading.Event(), threading.Event()
    known = register(store, "s", fixed(1))

    def decide(state: State) -> Decision:
        waiting.set()
        assert go_on.wait(60)
        return Decision([], None)

    thread = threading.Thread(target=store.change, args=(decide,))
    thread.start()
    try:
        assert waiting.wait(60)
        assert store.read(lambda state: state.schema(known.id)) == known.schema
    finally:
        go_on.set()
        thread.join(120)


def test_an_error_inside_of_a_transaction_leaves_nothing_behind(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stores
    register(first, "s", fixed(1))
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(Producer, "flush", lambda producer: 1 // 0)
        register(first, "t", fixed(2))
    assert register(second, "u", fixed(3)).id == 2
    assert register(first, "t", fixed(2)).id == 3
