"""Two-phase commit: another system decides, and the client does what was decided, whoever died when."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncelog.client import (
    AbortableError,
    Admin,
    Completion,
    IllegalState,
    KafkaError,
    PreparedTransaction,
    Producer,
)
from oncelog.client.errors import ErrorCode
from oncelog.client.transaction_state import State
from oncelog.testing.broker import BrokerProcess, broker
from tests.unit.client.client_factory import client_factory
from tests.unit.client.reading import Reading
from tests.waiting import wait_until


@pytest.fixture
def make(servers: str) -> Iterator[Callable[..., Producer]]:
    with client_factory(Producer, {"bootstrap.servers": servers, "linger.ms": 0}) as factory:
        yield lambda transactional_id, **settings: factory(transactional_id=transactional_id, **settings)


def test_a_prepared_transaction_is_completed_by_the_next_process(
    make: Any, reading: Reading, topic: str, unique: Any
) -> None:
    name = unique("txn")
    first = make(name)
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, "x", partition=0)
    remembered = str(first.prepare())
    with pytest.raises(IllegalState):
        first.send(topic, "y", partition=0)
    # The process dies here; its successor knows only what was written down.
    second = make(name)
    assert second.complete(PreparedTransaction.parse(remembered)) is Completion.COMMITTED
    assert reading.values(topic, [0]) == [b"x"]
    second.init_transactions()
    with second.transaction():
        second.send(topic, "z", partition=0)
    assert reading.values(topic, [0]) == [b"x", b"z"]


@pytest.mark.parametrize("version", [1, 2])
def test_completing_again_never_touches_a_later_transaction(
    make: Any, reading: Reading, topic: str, unique: Any, version: int
) -> None:
    name = unique("txn")
    first = make(name, oncelog_transaction_version_max=version)
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, "1", partition=0)
    prepared = first.prepare()
    assert first.complete(prepared) is Completion.COMMITTED
    first.begin_transaction()
    first.send(topic, "2", partition=0)
    first.flush()
    second = make(name)
    assert second.complete(prepared) is Completion.ENDED_BEFORE
    assert reading.values(topic, [0]) == [b"1"]


def test_a_prepared_transaction_that_was_aborted_meanwhile_is_reported(
    make: Any, module_admin: Admin, topic: str, unique: Any
) -> None:
    name = unique("txn")
    first = make(name)
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, "1", partition=0)
    prepared = first.prepare()
    first.abort_transaction()
    with pytest.raises(AbortableError, match="do its work again"):
        make(name).complete(prepared)
    with pytest.raises(IllegalState, match="was prepared as"):
        make(unique("txn")).complete(prepared)


def test_brokers_with_two_phase_commit_keep_what_was_prepared(tmp_path: Any) -> None:
    with broker({"transaction.two.phase.commit.enable": True}, data_dir=tmp_path / "data") as process:
        config = {
            "bootstrap.servers": process.bootstrap_servers,
            "transactional.id": "two-phase",
            "transaction.two.phase.commit.enable": True,
        }
        first = Producer(config)
        try:
            first.init_transactions()
        except KafkaError as error:
            first.close()
            assert error.code is ErrorCode.UNSUPPORTED_VERSION
            pytest.skip("this broker does not offer InitProducerId v6")
        first.begin_transaction()
        first.send("t", "kept", partition=0)
        prepared = first.prepare()
        with Producer(config) as second, Reading(process.bootstrap_servers) as reader:
            assert second.init_transactions(keep_prepared=True) == prepared
            assert second.state is State.PREPARED
            assert second.complete(prepared) is Completion.COMMITTED
            assert reader.values("t", [0]) == [b"kept"]
            with second.transaction():
                second.send("t", "next", partition=0)
            assert reader.values("t", [0]) == [b"kept", b"next"]
        first.close()


@pytest.fixture(scope="module")
def two_phase_broker() -> Iterator[BrokerProcess]:
    with broker({"transaction.two.phase.commit.enable": True}) as process:
        yield process


@pytest.fixture
def two_phase(two_phase_broker: BrokerProcess, unique: Any) -> Iterator[Callable[[], Producer]]:
    """Makes producers of one transactional id, each the successor of the last."""
    settings = {
        "bootstrap.servers": two_phase_broker.bootstrap_servers,
        "transactional.id": unique("two-phase"),
        "transaction.two.phase.commit.enable": True,
        "linger.ms": 0,
    }
    with client_factory(Producer, settings) as factory:
        yield factory


def prepare_one(client: Producer, topic: str, value: str) -> PreparedTransaction:
    client.begin_transaction()
    client.send(topic, value, partition=0)
    return client.prepare()


@pytest.mark.parametrize("settle", ["abort_transaction", "commit_transaction"])
def test_what_was_kept_and_ended_does_not_stand_in_for_the_next_prepared_transaction(
    two_phase: Any, two_phase_broker: BrokerProcess, unique: Any, settle: str
) -> None:
    topic = unique("kept")
    first = two_phase()
    first.init_transactions()
    kept = prepare_one(first, topic, "kept")
    second = two_phase()
    assert second.init_transactions(keep_prepared=True) == kept
    getattr(second, settle)()
    assert second.complete(prepare_one(second, topic, "next")) is Completion.COMMITTED
    with Reading(two_phase_broker.bootstrap_servers) as reader:
        assert reader.values(topic, [0]) == ([b"kept", b"next"] if settle == "commit_transaction" else [b"next"])


def test_a_prepared_transaction_that_the_other_side_does_not_remember_is_aborted(
    two_phase: Any, two_phase_broker: BrokerProcess, unique: Any
) -> None:
    topic = unique("kept")
    first = two_phase()
    first.init_transactions()
    decided = prepare_one(first, topic, "decided")
    assert first.complete(decided) is Completion.COMMITTED
    undecided = prepare_one(first, topic, "undecided")
    second = two_phase()
    assert second.init_transactions(keep_prepared=True) == undecided
    assert second.complete(decided) is Completion.OTHER_ABORTED
    with Reading(two_phase_broker.bootstrap_servers) as reader:
        assert reader.values(topic, [0]) == [b"decided"]


def test_an_open_transaction_that_a_dead_successor_had_taken_over_is_not_taken_for_ended(
    two_phase: Any, two_phase_broker: BrokerProcess, unique: Any
) -> None:
    topic = unique("kept")
    first = two_phase()
    first.init_transactions()
    prepared = prepare_one(first, topic, "decided")
    two_phase().init_transactions(keep_prepared=True)
    third = two_phase()
    with pytest.raises(IllegalState, match="keep_prepared=True"):
        third.complete(prepared)
    third.init_transactions(keep_prepared=True)
    assert third.complete(prepared) is Completion.COMMITTED
    with Reading(two_phase_broker.bootstrap_servers) as reader:
        assert reader.values(topic, [0]) == [b"decided"]


@pytest.mark.parametrize("version", [1, 2])
def test_an_abort_after_a_completed_transaction_does_not_make_that_one_lost(
    make: Any, topic: str, unique: Any, version: int
) -> None:
    settings = {"oncelog_transaction_version_max": version}
    name = unique("txn")
    first = make(name, **settings)
    first.init_transactions()
    by_itself = prepare_one(first, topic, "1")
    assert first.complete(by_itself) is Completion.COMMITTED
    abort_one(first, topic)
    assert make(name, **settings).complete(by_itself) is Completion.ENDED_BEFORE

    second = make(name, **settings)
    second.init_transactions()
    by_successor = prepare_one(second, topic, "2")
    third = make(name, **settings)
    assert third.complete(by_successor) is Completion.COMMITTED
    third.init_transactions()
    abort_one(third, topic)
    assert make(name, **settings).complete(by_successor) is Completion.ENDED_BEFORE


@pytest.mark.parametrize("version", [1, 2])
def test_a_successor_that_takes_over_before_it_completes_is_not_told_that_the_transaction_was_committed(
    make: Any, reading: Reading, topic: str, unique: Any, version: int
) -> None:
    settings = {"oncelog_transaction_version_max": version}
    name = unique("txn")
    first = make(name, **settings)
    first.init_transactions()
    prepared = prepare_one(first, topic, "aborted by the successor")
    second = make(name, **settings)
    second.init_transactions()
    with pytest.raises(IllegalState, match=r"how the prepared transaction .* ended is not known"):
        second.complete(prepared)
    own = prepare_one(second, topic, "own")
    assert second.complete(own) is Completion.COMMITTED
    abort_one(second, topic)
    assert second.complete(own) is Completion.ENDED_BEFORE
    assert reading.values(topic, [0]) == [b"own"]


def test_a_producer_knows_what_it_has_completed_for_a_predecessor(make: Any, topic: str, unique: Any) -> None:
    name = unique("txn")
    first = make(name)
    first.init_transactions()
    prepared = prepare_one(first, topic, "1")
    second = make(name)
    assert second.complete(prepared) is Completion.COMMITTED
    second.init_transactions()
    abort_one(second, topic)
    assert second.complete(prepared) is Completion.ENDED_BEFORE


def abort_one(client: Producer, topic: str) -> None:
    client.begin_transaction()
    client.send(topic, "aborted", partition=0)
    client.flush()
    client.abort_transaction()


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_that_timed_out_while_it_was_prepared_is_lost_and_not_ended_before(
    make: Any, module_admin: Admin, topic: str, unique: Any, version: int
) -> None:
    name = unique("txn")
    first = make(name, oncelog_transaction_version_max=version, transaction_timeout_ms=2_000)
    first.init_transactions()
    prepared = prepare_one(first, topic, "1")
    wait_until(lambda: module_admin.describe_transactions([name])[name].state == "CompleteAbort")
    with pytest.raises(AbortableError, match="do its work again"):
        make(name).complete(prepared)


def test_a_transaction_that_is_not_prepared_cannot_be_completed(make: Any, topic: str, unique: Any) -> None:
    client = make(unique("txn"))
    client.init_transactions()
    prepared = prepare_one(client, topic, "1")
    client.complete(prepared)
    client.begin_transaction()
    client.send(topic, "2", partition=0)
    with pytest.raises(IllegalState, match="nothing is prepared"):
        client.complete(prepared)
    client.commit_transaction()


def test_completing_again_in_the_same_process_says_that_it_is_committed(make: Any, topic: str, unique: Any) -> None:
    client = make(unique("txn"))
    client.init_transactions()
    prepared = prepare_one(client, topic, "1")
    assert [client.complete(prepared), client.complete(prepared)] == [Completion.COMMITTED] * 2


def test_a_block_that_raises_leaves_a_prepared_transaction_to_the_other_side(
    make: Any, reading: Reading, topic: str, unique: Any
) -> None:
    client = make(unique("txn"))
    client.init_transactions()
    with pytest.raises(ZeroDivisionError), client.transaction():
        client.send(topic, "decided", partition=0)
        prepared = client.prepare()
        raise ZeroDivisionError
    assert client.complete(prepared) is Completion.COMMITTED
    assert reading.values(topic, [0]) == [b"decided"]


def test_an_outcome_of_a_completion_is_not_taken_for_true_or_false() -> None:
    with pytest.raises(TypeError, match="three outcomes"):
        bool(Completion.COMMITTED)


class DualWrites:
    """A database that remembers one name, as `docs/client.md` wants it, and a topic beside it."""

    def __init__(self, make: Callable[[], Producer], topic: str, chance: random.Random) -> None:
        self._make, self._topic, self._chance = make, topic, chance
        self.decided: list[bytes] = []
        self._remembered: PreparedTransaction | None = None
        self._producer = make()
        self._producer.init_transactions()

    def write(self, value: str) -> None:
        prepared = prepare_one(self._producer, self._topic, value)
        fate = self._chance.choice(["goes on", "refused", "dies undecided", "dies decided", "dies completed"])
        if fate == "refused":
            self._producer.abort_transaction()
            return
        if fate != "dies undecided":
            self.decided.append(value.encode())
            self._remembered = prepared
        if fate in ("goes on", "dies completed"):
            assert self._producer.complete(prepared) is Completion.COMMITTED
        if fate.startswith("dies"):
            self._recover()

    def _recover(self) -> None:
        """As a new process that knows only what is remembered, and may die in turn."""
        self._producer = self._make()
        if self._remembered is not None and self._chance.random() < 0.3:
            self._producer.complete(self._remembered)
            self._producer.init_transactions()
            return
        held = self._producer.init_transactions(keep_prepared=True)
        if self._chance.random() < 0.3:
            self._producer = self._make()
            held = self._producer.init_transactions(keep_prepared=True)
        if held is None:
            return
        if self._remembered is None or (held != self._remembered and self._chance.random() < 0.5):
            self._producer.abort_transaction()
            return
        outcome = self._producer.complete(self._remembered)
        assert outcome is (Completion.COMMITTED if held == self._remembered else Completion.OTHER_ABORTED)


@pytest.mark.parametrize("seed", range(4))
def test_a_database_and_a_topic_agree_whatever_dies_when(
    two_phase: Any, two_phase_broker: BrokerProcess, unique: Any, seed: int
) -> None:
    topic = unique("dual")
    writes = DualWrites(two_phase, topic, random.Random(seed))
    for number in range(40):
        writes.write(str(number))
    with Reading(two_phase_broker.bootstrap_servers) as reader:
        assert reader.values(topic, [0]) == writes.decided
