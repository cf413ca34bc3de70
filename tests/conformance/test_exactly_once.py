"""Consume, transform, produce: with offsets in the transaction every input leads to one output, whoever dies."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import confluent_kafka
import pytest

from tests.conformance.brokers import Broker
from tests.conformance.clients import Message
from tests.conformance.libraries import CLIENTS
from tests.conformance.test_produce_consume import create_topic
from tests.conformance.test_transactions import committed_offset, end_offset
from tests.waiting import wait_until

PARTITIONS = 4
INPUTS = 400
WORKER = """
import os
import sys
import confluent_kafka
from confluent_kafka import KafkaException

bootstrap, source, target, group, name = sys.argv[1:]


def work():
    producer = confluent_kafka.Producer({
        "bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 6000, "linger.ms": 0,
    })
    producer.init_transactions(120)
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "isolation.level": "read_committed", "session.timeout.ms": 4000,
        "heartbeat.interval.ms": 200,
    })
    consumer.subscribe([source])
    while True:
        batch = [message for message in consumer.consume(7, 0.2) if message.error() is None]
        if not batch:
            continue
        producer.begin_transaction()
        try:
            for message in batch:
                producer.produce(target, message.value(), partition=message.partition())
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 120)
            producer.commit_transaction(120)
            print(len(batch), flush=True)
        except KafkaException as error:
            if error.args[0].fatal():
                raise
            producer.abort_transaction(120)
            for position in consumer.committed(consumer.assignment(), 120):
                position.offset = position.offset if position.offset >= 0 else confluent_kafka.OFFSET_BEGINNING
                consumer.seek(position)


try:
    work()
except KafkaException:  # a transaction that took too long on a busy machine; whoever runs it would start it again
    os.execv(sys.executable, sys.orig_argv)
"""


def worker(broker: Broker, source: str, target: str, group: str, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WORKER, broker.bootstrap_servers, source, target, group, name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def first_to_commit(workers: Sequence[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """The worker that first says it committed a transaction; which one it is depends on the group."""
    with selectors.DefaultSelector() as selector:
        for process in workers:
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, process)
        ready = selector.select(120)
    assert ready, "no worker commits anything"
    first: subprocess.Popen[bytes] = ready[0][0].data
    return first


@pytest.mark.parametrize(
    ("broker_kind", "transaction_version"), [("oncelog", 0), ("oncelog", 2), ("kafka", 2)], indirect=True
)
def test_one_of_two_workers_dies_in_mid_transaction(broker: Broker, unique: Callable[[str], str]) -> None:
    source = create_topic(broker, unique("in"), partitions=PARTITIONS)
    target = create_topic(broker, unique("out"), partitions=PARTITIONS)
    group, names = unique("g"), [unique("x") for _ in range(2)]
    inputs = [Message(b"%d" % number, partition=number % PARTITIONS) for number in range(INPUTS)]
    CLIENTS["confluent-kafka"].produce(broker.bootstrap_servers, source, inputs[: INPUTS // 2])
    workers = [worker(broker, source, target, group, name) for name in names]
    try:
        victim = first_to_commit(workers)
        CLIENTS["confluent-kafka"].produce(broker.bootstrap_servers, source, inputs[INPUTS // 2 :])
        os.kill(victim.pid, signal.SIGKILL)

        def done() -> bool:
            offsets = [committed_offset(broker, group, source, partition) for partition in range(PARTITIONS)]
            return offsets == [INPUTS // PARTITIONS] * PARTITIONS

        wait_until(done, "all inputs are committed", timeout_s=300)
    finally:
        for process in workers:
            process.kill()
            process.wait()
    found: Counter[bytes | None] = Counter()
    for partition in range(PARTITIONS):
        wanted = INPUTS // PARTITIONS
        read = CLIENTS["confluent-kafka"].consume(
            broker.bootstrap_servers, target, wanted, partition=partition, committed=True
        )
        found.update(message.value for message in read)
    assert found == Counter(message.value for message in inputs)


@pytest.mark.parametrize(
    ("level", "expected"), [("at most once", "lost"), ("at least once", "doubled"), ("exactly once", "exact")]
)
def test_delivery_levels(broker: Broker, unique: Callable[[str], str], level: str, expected: str) -> None:
    """The same crash after the first step of two: which of offset and output came first decides what is lost or
    doubled.
    """
    source, target = create_topic(broker, unique("in")), create_topic(broker, unique("out"))
    group, name = unique("g"), unique("x")
    CLIENTS["confluent-kafka"].produce(broker.bootstrap_servers, source, [Message(b"input")])

    def attempt(*, crash: bool) -> None:
        at = max(committed_offset(broker, group, source), 0)
        pending = at < 1
        if not pending:
            return
        if level == "exactly once":
            producer = CLIENTS["confluent-kafka"].transactional(broker.bootstrap_servers, name)
            producer.begin()
            producer.send(target, b"output")
            if not crash:
                producer.offsets(group, source, 1)
                producer.commit()
            producer.close()
            return
        steps = [lambda: commit(), lambda: write()] if level == "at most once" else [lambda: write(), lambda: commit()]
        for step in steps[: 1 if crash else 2]:
            step()

    def commit() -> None:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
        consumer.commit(offsets=[confluent_kafka.TopicPartition(source, 0, 1)], asynchronous=False)
        consumer.close()

    def write() -> None:
        CLIENTS["confluent-kafka"].produce(broker.bootstrap_servers, target, [Message(b"output")])

    attempt(crash=True)
    attempt(crash=False)
    count = {"lost": 0, "doubled": 2, "exact": 1}[expected]
    if level == "exactly once":
        wait_until(lambda: end_offset(broker, target, committed=True) == 4, "both transactions ended")
    else:
        assert end_offset(broker, target, committed=True) == count
    read = CLIENTS["confluent-kafka"].consume(broker.bootstrap_servers, target, count, committed=True)
    assert [message.value for message in read] == [b"output"] * count
