"""Apache Kafka's own Java clients and tools: the newest protocol that each transaction.version allows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from peers.kafka.java_client import JavaClient
from peers.kafka.kafka import run_java
from tests.conformance.brokers import Broker
from tests.conformance.libraries import CLIENTS
from tests.conformance.test_produce_consume import create_topic
from tests.conformance.test_transactions import committed_offset, end_offset, values
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("java")
old_and_new = pytest.mark.parametrize("transaction_version", [1, 2], indirect=True)
"""A Java client speaks the same old protocol on 0 and 1."""
FENCED = {"InvalidProducerEpochException", "ProducerFencedException"}


@pytest.fixture(scope="module")
def clients() -> Iterator[Callable[[Broker], JavaClient]]:
    """One Java process for each broker: it takes seconds to start."""
    started: dict[str, JavaClient] = {}

    def of(broker: Broker) -> JavaClient:
        address = broker.bootstrap_servers
        return started.setdefault(address, started.get(address) or JavaClient(address))

    yield of
    for client in started.values():
        client.close()


@pytest.fixture
def client(broker: Broker, clients: Callable[[Broker], JavaClient]) -> JavaClient:
    return clients(broker)


def lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_the_verifiable_producer_and_consumer(broker: Broker, unique: Callable[[str], str]) -> None:
    topic, group = create_topic(broker, unique("t"), partitions=3), unique("g")
    bootstrap = ("--bootstrap-server", broker.bootstrap_servers)
    produced = run_java(
        "org.apache.kafka.tools.VerifiableProducer",
        *bootstrap,
        "--topic",
        topic,
        "--max-messages",
        "300",
        "--acks",
        "-1",
    )
    sent = [line for line in lines(produced.stdout) if line["name"] == "producer_send_success"]
    assert len(sent) == 300, produced.stderr
    consumed = run_java(
        "org.apache.kafka.tools.VerifiableConsumer",
        *(*bootstrap, "--topic", topic, "--group-id", group, "--max-messages", "300"),
        *("--reset-policy", "earliest", "--group-protocol", "classic", "--verbose"),
    )
    read = [line for line in lines(consumed.stdout) if line["name"] == "record_data"]
    assert sorted(int(line["value"]) for line in read) == list(range(300)), consumed.stderr
    assert sum(max(committed_offset(broker, group, topic, partition), 0) for partition in range(3)) == 300


@old_and_new
def test_transactions_commit_abort_and_go_on(
    broker: Broker, client: JavaClient, unique: Callable[[str], str], transaction_version: int
) -> None:
    topic, name, group = create_topic(broker, unique("t"), partitions=2), unique("x"), unique("g")
    assert client.ok("features").get("transaction.version", 0) == transaction_version
    client.ok(f"producer p {name}")
    client.ok("init p")
    epochs = []
    for turn, end in enumerate(("commit", "abort", "commit", "abort", "commit")):
        client.ok("begin p")
        client.ok(f"send p {topic} 0 k {turn}")
        client.ok(f"send p {topic} 1 k {turn}")
        client.ok(f"offsets p {group} {topic} 0 {turn}")
        client.ok(f"{end} p")
        epochs.append(client.ok(f"describe {name}")["epoch"])
    client.ok("begin p")
    client.ok("commit p")
    client.ok("begin p")
    client.ok("abort p")
    # TV2 moves the epoch with every end of a transaction, the older protocols never.
    assert epochs == ([1, 2, 3, 4, 5] if transaction_version == 2 else [0] * 5)
    for partition in (0, 1):
        assert values(broker, topic, 3, committed=True, partition=partition) == [b"0", b"2", b"4"]
        assert len(values(broker, topic, 5, committed=False, partition=partition)) == 5
    wait_until(lambda: committed_offset(broker, group, topic) == 4, "the last committed offset")


@old_and_new
def test_a_second_producer_fences_the_first(broker: Broker, client: JavaClient, unique: Callable[[str], str]) -> None:
    topic, name = create_topic(broker, unique("t")), unique("x")
    for producer in ("first", "second"):
        client.ok(f"producer {producer} {name}")
    client.ok("init first")
    client.ok("begin first")
    client.ok(f"send first {topic} 0 k first")
    client.ok("init second")
    failed = client.run(f"send first {topic} 0 k again")
    assert failed["exception"] in FENCED
    assert not client.run("commit first")["ok"]
    assert client.run("abort first")["exception"] in FENCED
    client.ok("begin second")
    client.ok(f"send second {topic} 0 k second")
    client.ok("commit second")
    assert values(broker, topic, 1, committed=True) == [b"second"]


@old_and_new
def test_a_timed_out_producer(
    broker: Broker, client: JavaClient, unique: Callable[[str], str], transaction_version: int
) -> None:
    """With TV2 it aborts and goes on; an older producer is done for."""
    topic, name = create_topic(broker, unique("t")), unique("x")
    client.ok(f"producer p {name} transaction.timeout.ms=3000 delivery.timeout.ms=60000 request.timeout.ms=30000")
    client.ok("init p")
    client.ok("begin p")
    client.ok(f"send p {topic} 0 k slow")
    wait_until(lambda: end_offset(broker, topic, committed=True) == 2, "the coordinator aborts the transaction")
    failed = client.run(f"send p {topic} 0 k late")
    assert failed["exception"] == "InvalidProducerEpochException"
    aborted = client.run("abort p")
    assert aborted["ok"] == (transaction_version == 2), aborted
    if transaction_version == 2:
        client.ok("begin p")
        client.ok(f"send p {topic} 0 k again")
        client.ok("commit p")
        assert values(broker, topic, 1, committed=True) == [b"again"]


@old_and_new
def test_operators_fence_and_abort(broker: Broker, client: JavaClient, unique: Callable[[str], str]) -> None:
    topic, name = create_topic(broker, unique("t")), unique("x")
    client.ok(f"producer p {name}")
    client.ok("init p")
    client.ok("begin p")
    client.ok(f"send p {topic} 0 k v")
    described = client.ok(f"describe {name}")
    assert (described["state"], described["partitions"]) == ("Ongoing", [f"{topic}-0"])
    assert client.ok("list")["transactions"][name] == "Ongoing"
    client.ok(f"fence {name}")
    assert client.run("commit p")["exception"] in FENCED
    wait_until(lambda: end_offset(broker, topic, committed=True) == 2, "fencing aborted the transaction")
    assert client.run(f"describe {unique('nobody')}")["exception"] == "TransactionalIdNotFoundException"


def test_a_hanging_transaction_is_aborted_by_hand(
    broker: Broker, client: JavaClient, unique: Callable[[str], str]
) -> None:
    topic = create_topic(broker, unique("t"))
    producer = CLIENTS["confluent-kafka"].transactional(broker.bootstrap_servers, unique("x"))
    producer.begin()
    producer.send(topic, b"hanging")
    assert end_offset(broker, topic, committed=True) == 0
    client.ok(f"hanging {topic} 0")
    assert end_offset(broker, topic, committed=True) == 2
    producer.close()


def test_the_transactions_command(broker: Broker, unique: Callable[[str], str]) -> None:
    topic, name = create_topic(broker, unique("t")), unique("x")
    producer = CLIENTS["confluent-kafka"].transactional(broker.bootstrap_servers, name)
    producer.begin()
    producer.send(topic, b"open")
    tool, bootstrap = "org.apache.kafka.tools.TransactionsCommand", ("--bootstrap-server", broker.bootstrap_servers)
    listed = run_java(tool, *bootstrap, "list")
    assert [line.split()[3] for line in listed.stdout.splitlines() if line.startswith(name)] == ["Ongoing"], (
        listed.stderr
    )
    described = run_java(tool, *bootstrap, "describe-producers", "--topic", topic, "--partition", "0")
    names, row = (line.split() for line in described.stdout.splitlines())
    shown = dict(zip(names, row, strict=True))
    assert (shown["ProducerEpoch"], shown["LastSequence"], shown["CurrentTransactionStartOffset"]) == ("0", "0", "0")
    producer.commit()
    producer.close()


@old_and_new
def test_consume_transform_produce(broker: Broker, client: JavaClient, unique: Callable[[str], str]) -> None:
    """The consumer's own group metadata fences a producer whose partitions were given to somebody else (KIP-447)."""
    source, target = create_topic(broker, unique("in")), create_topic(broker, unique("out"))
    group = unique("g")
    client.ok("producer feed -")
    for number in range(6):
        client.ok(f"send feed {source} 0 k {number}")
    client.ok(f"producer p {unique('x')}")
    client.ok("init p")
    client.ok(f"consumer c {group} {source} isolation.level=read_committed max.poll.records=3")
    for _ in range(2):
        records = client.ok("poll c 120000 3")["records"]
        client.ok("begin p")
        for record in records:
            client.ok(f"send p {target} 0 k out-{record[4]}")
        client.ok("offsetsof p c")
        client.ok("commit p")
    assert values(broker, target, 6, committed=True) == [b"out-%d" % number for number in range(6)]
    wait_until(lambda: committed_offset(broker, group, source) == 6, "the offsets are committed")
    client.ok("begin p")
    failed = client.run(f"offsets p {group} {source} 0 9 77 somebody")
    assert failed["exception"] == "CommitFailedException"
    client.ok("abort p")
    assert committed_offset(broker, group, source) == 6
