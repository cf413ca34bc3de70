"""A producer in front of a broker that misbehaves: nothing lost, nothing doubled, nothing without a bound."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from oncelog.client import (
    AbortableError,
    Completion,
    FatalError,
    KafkaError,
    Producer,
    ProducerFenced,
    TimedOut,
    TopicPartition,
)
from oncelog.client.errors import ErrorCode
from oncelog.client.transaction_state import State
from oncelog.core.errors import RETRIABLE
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.schema import Message
from tests.unit.client.chaos import Accident, Chaos, Kind
from tests.unit.client.reading import Reading
from tests.waiting import wait_until

LOSSES = [Kind.LOSE_REQUEST, Kind.LOSE_ANSWER, Kind.HALF_ANSWER, Kind.DELAY, Kind.DOUBLE]
TRANSACTIONAL = [
    ApiKey.PRODUCE,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.FIND_COORDINATOR,
    ApiKey.METADATA,
    ApiKey.API_VERSIONS,
]
QUICK: dict[str, Any] = {
    "request.timeout.ms": 1_000,
    "default.api.timeout.ms": 30_000,
    "delivery.timeout.ms": 30_000,
    "max.block.ms": 30_000,
    "retry.backoff.ms": 2,
    "retry.backoff.max.ms": 20,
    "linger.ms": 0,
}
both_protocols = pytest.mark.parametrize("version", [1, 2], ids=["TV1", "TV2"])


def producer(chaos: Chaos, transactional_id: str | None, version: int = 2, **settings: Any) -> Producer:
    config = {
        "bootstrap.servers": chaos.bootstrap_servers,
        "oncelog.transaction.version.max": version,
        **QUICK,
        **settings,
    }
    if transactional_id is not None:
        config["transactional.id"] = transactional_id
    return Producer(config)


def write(client: Producer, topic: str, name: str) -> None:
    """One transaction of four records and an offset; what a program does about the errors it may meet."""
    for _ in range(20):
        try:
            with client.transaction():
                for number in range(4):
                    client.send(topic, f"{name}.{number}", partition=number % 2)
                client.send_offsets_to_transaction({TopicPartition(topic, 0): 4}, f"group-of-{topic}")
            return
        except (AbortableError, TimedOut):
            while client.state is State.COMMITTING:
                try:
                    client.commit_transaction()
                    return
                except TimedOut:
                    continue
                except AbortableError:
                    client.abort_transaction()
            while client.state in (State.ABORTING, State.ABORTABLE_ERROR):
                client.abort_transaction()
    raise AssertionError(f"{name} did not get through")


def expected(names: list[str]) -> list[bytes]:
    return [f"{name}.{number}".encode() for half in (0, 1) for name in names for number in (half, half + 2)]


@both_protocols
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("key", TRANSACTIONAL, ids=lambda key: key.name)
def test_any_single_accident_with_any_request_leaves_every_transaction_exactly_once(
    chaos: Chaos, reading: Reading, topic: str, unique: Callable[[str], str], key: ApiKey, kind: Kind, version: int
) -> None:
    chaos.once(key, Accident(kind))
    with producer(chaos, unique("txn"), version) as client:
        client.init_transactions()
        names = [f"t{number}" for number in range(3)]
        for name in names:
            write(client, topic, name)
    assert reading.values(topic) == expected(names)
    if not (version == 2 and key in (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN)):
        assert chaos.happened[kind] == 1


@both_protocols
@pytest.mark.parametrize("seed", range(2))
def test_many_random_accidents_leave_every_transaction_exactly_once(
    chaos: Chaos, reading: Reading, topic: str, unique: Callable[[str], str], seed: int, version: int
) -> None:
    draw = random.Random(seed)
    codes = [code for code in RETRIABLE if code < 60]

    def accident(key: ApiKey, request: Message) -> Accident | None:
        if key not in TRANSACTIONAL or draw.random() > 0.5:
            return None
        if draw.random() < 0.3 and key is not ApiKey.API_VERSIONS:
            return Accident(Kind.REFUSE, draw.choice(codes))
        return Accident(draw.choice(LOSSES), delay_s=0.01)

    with producer(chaos, unique("txn"), version) as client:
        client.init_transactions()
        chaos.accident = accident
        names = [f"t{number}" for number in range(15)]
        for name in names:
            write(client, topic, name)
        chaos.accident = lambda key, request: None
    assert reading.values(topic) == expected(names)
    assert sum(chaos.happened.values()) > 5


@both_protocols
def test_a_broker_that_stops_answering_is_left_after_the_request_timeout(
    chaos: Chaos, reading: Reading, topic: str, unique: Callable[[str], str], version: int
) -> None:
    whole = dict.fromkeys(("default.api.timeout.ms", "delivery.timeout.ms"), 120_000)
    for key in (ApiKey.PRODUCE, ApiKey.END_TXN):
        with producer(chaos, unique("txn"), version, **whole) as client:
            client.init_transactions()
            chaos.once(key, Accident(Kind.HANG))
            started = time.monotonic()
            write(client, topic, key.name)
            assert 0.9 < time.monotonic() - started < 60
    assert reading.values(topic) == expected(["PRODUCE", "END_TXN"])


@both_protocols
def test_leaders_and_coordinators_that_move_are_followed(
    chaos: Chaos, reading: Reading, topic: str, unique: Callable[[str], str], version: int
) -> None:
    names = [f"t{number}" for number in range(8)]
    with producer(chaos, unique("txn"), version) as client:
        client.init_transactions()
        for number, name in enumerate(names):
            chaos.coordinator = 1 + number % 2
            chaos.leaders[TopicPartition(topic, number % 2)] = 1 + (number // 2) % 2
            write(client, topic, name)
    assert reading.values(topic) == expected(names)


def test_a_leader_that_moves_in_the_middle_of_a_transaction(
    chaos: Chaos, reading: Reading, topic: str, unique: Callable[[str], str]
) -> None:
    with producer(chaos, unique("txn")) as client:
        client.init_transactions()
        with client.transaction():
            for number in range(200):
                if number == 100:
                    chaos.leaders[TopicPartition(topic, 0)] = 2
                client.send(topic, str(number), partition=0)
    assert reading.values(topic, [0]) == [str(number).encode() for number in range(200)]


def test_an_idempotent_producer_delivers_each_record_once_through_accidents(
    chaos: Chaos, reading: Reading, topic: str
) -> None:
    draw = random.Random(1)
    kinds = [Kind.LOSE_REQUEST, Kind.LOSE_ANSWER, Kind.HALF_ANSWER, Kind.REFUSE]
    codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS]

    def accident(key: ApiKey, request: Message) -> Accident | None:
        if key is ApiKey.PRODUCE and draw.random() < 0.3:
            return Accident(draw.choice(kinds), draw.choice(codes))
        return None

    chaos.accident = accident
    with producer(chaos, None, **{"batch.size": 200}) as client:
        futures = [client.send(topic, str(number), partition=0) for number in range(1000)]
        client.flush()
    assert reading.values(topic, [0]) == [str(number).encode() for number in range(1000)]
    assert [future.result().offset for future in futures] == list(range(1000))


def test_without_idempotence_nothing_is_lost(chaos: Chaos, reading: Reading, topic: str) -> None:
    chaos.once(ApiKey.PRODUCE, Accident(Kind.LOSE_ANSWER))
    with producer(chaos, None, acks="1") as client:
        client.send(topic, "a", partition=0)
        client.flush()
    assert reading.values(topic, [0]) == [b"a", b"a"]


def test_acks_0_sends_and_does_not_wait(chaos: Chaos, reading: Reading, topic: str) -> None:
    with producer(chaos, None, acks="0") as client:
        assert client.send(topic, "a", partition=0).result(60).offset == -1
    wait_until(lambda: reading.values(topic, [0]) == [b"a"])


# Every kind of code at every step. What a code means at a step is also written down in test_transaction_state.

SETTLING: dict[ApiKey, set[int]] = {ApiKey.PRODUCE: {45, 46, 47, 48, 59}}
CODES = [-1, 1, 3, 6, 7, 10, 12, 14, 15, 16, 19, 22, 25, 29, 30, 31, 35, 42, 45, 47, 48, 49, 51, 53, 55, 59, 69, 82, 87]
CODES += [89, 90, 113, 120]


@both_protocols
@pytest.mark.parametrize(
    "key",
    [
        ApiKey.PRODUCE,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.INIT_PRODUCER_ID,
    ],
    ids=lambda key: key.name,
)
def test_every_code_at_every_step_ends_in_success_abort_or_a_clear_end(
    chaos: Chaos, reading: Reading, topic: str, unique: Callable[[str], str], key: ApiKey, version: int
) -> None:
    committed: list[str] = []
    for code in CODES:
        name, transactional_id = f"c{code}", unique("txn")
        client = producer(chaos, transactional_id, version)
        chaos.once(key, Accident(Kind.REFUSE, code))
        try:
            client.init_transactions()
            write(client, topic, name)
            committed.append(name)
        except FatalError:
            assert client.state is State.FATAL_ERROR
            assert code not in RETRIABLE
        except AbortableError:
            assert key is ApiKey.INIT_PRODUCER_ID
            assert client.state is State.UNINITIALISED
        finally:
            chaos.accident = lambda seen, request: None
            client.close()
        if name not in committed:
            # The successor clears up what a producer left open that could not go on.
            with producer(chaos, transactional_id, version) as successor:
                successor.init_transactions()
    assert reading.values(topic) == expected(committed)
    assert {f"c{code}" for code in CODES if code in RETRIABLE} <= set(committed)


@both_protocols
def test_an_answer_that_lies_about_the_commit_never_doubles_anything(
    chaos: Chaos, reading: Reading, topic: str, unique: Callable[[str], str], version: int
) -> None:
    with producer(chaos, unique("txn"), version) as client:
        client.init_transactions()
        for code in (7, 14, 15, 16, 51):
            chaos.once(ApiKey.END_TXN, Accident(Kind.LIE, code))
            write(client, topic, f"l{code}")
    assert reading.values(topic) == expected([f"l{code}" for code in (7, 14, 15, 16, 51)])


@both_protocols
def test_a_commit_without_an_answer_can_be_asked_for_again(
    chaos: Chaos, reading: Reading, topic: str, unique: Callable[[str], str], version: int
) -> None:
    with producer(chaos, unique("txn"), version, **{"default.api.timeout.ms": 4_000}) as client:
        client.init_transactions()
        client.begin_transaction()
        client.send(topic, "x", partition=0)
        client.flush()
        chaos.accident = lambda key, request: Accident(Kind.LOSE_ANSWER) if key is ApiKey.END_TXN else None
        with pytest.raises(TimedOut):
            client.commit_transaction()
        assert client.state is State.COMMITTING
        with pytest.raises(RuntimeError, match="commit_transaction"):
            client.abort_transaction()
        chaos.accident = lambda key, request: None
        client.commit_transaction()
        assert client.state is State.READY
    assert reading.values(topic, [0]) == [b"x"]


@both_protocols
def test_a_second_producer_fences_the_first_and_nothing_of_it_is_seen(
    chaos: Chaos, reading: Reading, topic: str, unique: Callable[[str], str], version: int
) -> None:
    name = unique("txn")
    with producer(chaos, name, version) as first, producer(chaos, name, version) as second:
        first.init_transactions()
        first.begin_transaction()
        first.send(topic, "zombie", partition=0)
        first.flush()
        second.init_transactions()
        with second.transaction():
            second.send(topic, "valid", partition=0)
        with pytest.raises(KafkaError) as caught:
            first.send(topic, "zombie", partition=0)
            first.commit_transaction()
        if not isinstance(caught.value, ProducerFenced):
            with pytest.raises(ProducerFenced):
                first.abort_transaction()
        assert first.state is State.FATAL_ERROR
        with pytest.raises(ProducerFenced):
            first.begin_transaction()
    assert reading.values(topic, [0]) == [b"valid"]


def test_a_transaction_that_the_coordinator_timed_out_can_be_begun_again(
    chaos: Chaos, reading: Reading, topic: str, unique: Callable[[str], str]
) -> None:
    name = unique("txn")
    with producer(chaos, name) as client:
        client.init_transactions()
        client.begin_transaction()
        client.send(topic, "late", partition=0)
        client.flush()
        # A refused commit whose abort is accepted is what a timeout at the coordinator looks like.
        refused = Accident(Kind.REFUSE, ErrorCode.PRODUCER_FENCED)
        left = [refused]

        def accident(key: ApiKey, request: Message) -> Accident | None:
            if isinstance(request, EndTxnRequest) and request.committed and left:
                return left.pop()
            return None

        chaos.accident = accident
        with pytest.raises(AbortableError, match=r"transaction\.timeout\.ms"):
            client.commit_transaction()
        client.abort_transaction()
        write(client, topic, "again")
    assert reading.values(topic) == expected(["again"])


def test_closing_is_bounded_even_when_nothing_answers(chaos: Chaos, topic: str, unique: Callable[[str], str]) -> None:
    client = producer(chaos, unique("txn"), **{"default.api.timeout.ms": 60_000})
    client.init_transactions()
    client.begin_transaction()
    client.send(topic, "x", partition=0)
    chaos.accident = lambda key, request: Accident(Kind.HANG)
    started = time.monotonic()
    client.close(timeout_ms=300)
    assert time.monotonic() - started < 30


@both_protocols
def test_a_completion_that_timed_out_behind_its_commit_is_completed_by_the_next_call(
    chaos: Chaos, reading: Reading, topic: str, unique: Callable[[str], str], version: int
) -> None:
    hanging = {"default.api.timeout.ms": 4_000, "request.timeout.ms": 1_000}
    with producer(chaos, unique("txn"), version, **hanging) as client:
        client.init_transactions()
        client.begin_transaction()
        client.send(topic, "x", partition=0)
        prepared = client.prepare()
        last_request = ApiKey.INIT_PRODUCER_ID if version == 1 else ApiKey.END_TXN
        chaos.accident = lambda key, request: Accident(Kind.HANG) if key is last_request else None
        with pytest.raises(TimedOut):
            client.complete(prepared)
        chaos.accident = lambda key, request: None
        assert client.complete(prepared) is Completion.COMMITTED
    assert reading.values(topic, [0]) == [b"x"]
