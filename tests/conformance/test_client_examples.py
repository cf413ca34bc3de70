"""The example programs of the client, each on both brokers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from examples.client import (
    consume_transform_produce,
    idempotent,
    read_committed_reader,
    two_phase_commit,
    write_only_transaction,
)

from oncelog.client import Admin, ClientConfig, NewTopic, Producer, TopicPartition
from tests.conformance.brokers import Broker
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
INPUTS = 2000


class Crash(Exception):
    """The process dies here."""


def create(broker: Broker, topic: str, partitions: int = 1) -> str:
    with Admin(ClientConfig(bootstrap_servers=broker.bootstrap_servers)) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1)])
    return topic


def read_of(broker: Broker, source: str) -> int:
    """How many records of both partitions the group of `consume_transform_produce` has committed."""
    partitions = [TopicPartition(source, 0), TopicPartition(source, 1)]
    with Admin(ClientConfig(bootstrap_servers=broker.bootstrap_servers)) as admin:
        offsets = admin.group_offsets(consume_transform_produce.GROUP, partitions, require_stable=True)
    return sum(committed.offset for committed in offsets.values())


def committed(broker: Broker, topic: str) -> list[bytes]:
    return read_committed_reader.run(broker.bootstrap_servers, topic)


def await_committed(broker: Broker, topic: str, expected: list[bytes]) -> None:
    """A commit is answered when it is decided, and its records are shown a moment later."""
    wait_until(lambda: len(committed(broker, topic)) >= len(expected), f"{len(expected)} records of {topic} are shown")
    assert committed(broker, topic) == expected


def test_idempotent(broker: Broker, unique: Callable[[str], str]) -> None:
    topic = create(broker, unique("idempotent"))
    places = idempotent.run(broker.bootstrap_servers, topic, 100)
    assert [place.offset for place in places] == list(range(100))
    assert "acks=1" in idempotent.contradiction(broker.bootstrap_servers)


def test_write_only_transaction(broker: Broker, unique: Callable[[str], str]) -> None:
    topic = create(broker, unique("orders"))
    create(broker, f"{topic}-invoices")
    assert write_only_transaction.run(broker.bootstrap_servers, topic, unique("id")) == ["order-1", "order-3"]
    await_committed(broker, topic, [b"order 120", b"order 80"])
    await_committed(broker, f"{topic}-invoices", [b"invoice 120", b"invoice 80"])


def test_read_committed_reader(broker: Broker, unique: Callable[[str], str]) -> None:
    topic = create(broker, unique("read"), 2)
    with Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": unique("id")}) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, "committed", partition=0)
        producer.begin_transaction()
        producer.send(topic, "aborted", partition=0)
        producer.flush()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, "open", partition=1)
        producer.flush()
        await_committed(broker, topic, [b"committed"])
        everything = read_committed_reader.run(broker.bootstrap_servers, topic, "read_uncommitted")
        assert sorted(everything) == [b"aborted", b"committed", b"open"]


@contextmanager
def worker(broker: Broker, source: str, target: str, instance: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "examples.client.consume_transform_produce"]
    process = subprocess.Popen([*command, broker.bootstrap_servers, source, target, instance], cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_consume_transform_produce_with_two_instances_one_of_them_killed(
    broker: Broker, unique: Callable[[str], str]
) -> None:
    source, target, name = create(broker, unique("in"), 2), create(broker, unique("out")), unique("instance")
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for number in range(INPUTS):
            producer.send(source, f"value {number}", partition=number % 2)
    expected = sorted(f"VALUE {number}".encode() for number in range(INPUTS))
    with worker(broker, source, target, f"{name}-a"), worker(broker, source, target, f"{name}-b") as victim:
        wait_until(lambda: len(committed(broker, target)) > INPUTS // 10, "some output")
        victim.kill()
        victim.wait()
        with worker(broker, source, target, f"{name}-b"):
            wait_until(lambda: read_of(broker, source) == INPUTS, "all input is read", timeout_s=300)
            wait_until(lambda: len(committed(broker, target)) >= INPUTS, "all output is shown")
    assert sorted(committed(broker, target)) == expected


@pytest.mark.parametrize("transaction_version", [0, 2], indirect=True)
@pytest.mark.parametrize(("step", "survives"), [("prepared", False), ("decided", True), ("completed", True)])
def test_two_phase_commit_with_sqlite(
    broker: Broker, unique: Callable[[str], str], tmp_path: Path, step: str, survives: bool
) -> None:
    topic, name, database = create(broker, unique("bank")), unique("id"), str(tmp_path / "bank.db")

    def run(transfers: list[tuple[str, int]], at: Callable[[str], None] = lambda reached: None) -> None:
        two_phase_commit.run(broker.bootstrap_servers, database, transfers, topic=topic, transactional_id=name, at=at)

    def die(reached: str) -> None:
        if reached == step:
            raise Crash

    run([("alice", 1)])
    with pytest.raises(Crash):
        run([("alice", 10)], die)
    run([("bob", 100)])
    await_committed(broker, topic, [b"1", *([b"10"] if survives else []), b"100"])
    with two_phase_commit.closing(two_phase_commit.sqlite3.connect(database)) as bank:
        balances = dict(bank.execute("select account, amount from balance"))
    assert balances == {"alice": 11 if survives else 1, "bob": 100}


@pytest.mark.parametrize("transaction_version", [0, 2], indirect=True)
def test_two_phase_commit_with_sqlite_writes_again_what_timed_out_after_the_decision(
    broker: Broker, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic, name, database = create(broker, unique("bank")), unique("id"), str(tmp_path / "bank.db")

    def run(transfers: list[tuple[str, int]], at: Callable[[str], None] = lambda reached: None) -> None:
        two_phase_commit.run(
            broker.bootstrap_servers,
            database,
            transfers,
            topic=topic,
            transactional_id=name,
            transaction_timeout_ms=4000,
            at=at,
        )

    def die(reached: str) -> None:
        if reached == "decided":
            raise Crash

    def timed_out() -> bool:
        with Admin(ClientConfig(bootstrap_servers=broker.bootstrap_servers)) as admin:
            return admin.describe_transactions([name])[name].state == "CompleteAbort"

    with pytest.raises(Crash):
        run([("alice", 10)], die)
    wait_until(timed_out, "the transaction's time-out")
    run([("bob", 100)])
    run([])
    await_committed(broker, topic, [b"10", b"100"])
