"""Consumer groups with real clients: members that join, leave, die and come back, and their committed offsets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiokafka
import confluent_kafka
import kafka.errors
import pytest
from confluent_kafka import TopicPartition

import kafka
from peers.kafka.kafka import run_java
from tests.conformance.brokers import Broker, warm_up
from tests.conformance.clients import Message
from tests.conformance.libraries import CLIENTS
from tests.conformance.test_produce_consume import create_topic
from tests.conformance.test_transactions import admin_of, committed_offset
from tests.waiting import wait_until

PARTITIONS = 4
SESSION_MS = 60_000
"""Nobody waits for its end: who dies has a shorter one of its own."""


class Member:
    """A librdkafka consumer that remembers what it was assigned and what it read."""

    def __init__(self, broker: Broker, group: str, topic: str, strategy: str = "range", **settings: Any) -> None:
        self.read: list[Any] = []
        self.assignments: list[list[int]] = []
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": group,
                "partition.assignment.strategy": strategy,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 300,
                **settings,
            }
        )
        self.consumer.subscribe([topic], on_assign=self._note)

    def _note(self, _: Any, partitions: Sequence[TopicPartition]) -> None:
        self.assignments.append(sorted(one.partition for one in partitions))

    @property
    def assigned(self) -> set[int]:
        return {one.partition for one in self.consumer.assignment()}

    def poll(self, seconds: float = 0.02) -> None:
        message = self.consumer.poll(seconds)
        if message is not None and message.error() is None:
            self.read.append(message)

    def close(self) -> None:
        self.consumer.close()


def together(members: Sequence[Member], condition: Callable[[], bool], what: str) -> None:
    """Poll all members until a condition holds."""

    def step() -> bool:
        for member in members:
            member.poll()
        return condition()

    wait_until(step, what)


def shared(members: Sequence[Member], sizes: Sequence[int]) -> bool:
    """Whether the partitions are all assigned, each to one member, in shares of these sizes."""
    parts = [member.assigned for member in members]
    return sorted(map(len, parts)) == sorted(sizes) and set().union(*parts) == set(range(PARTITIONS))


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_partitions_are_shared_as_members_join_and_leave(
    broker: Broker, unique: Callable[[str], str], strategy: str
) -> None:
    topic, group = create_topic(broker, unique("t"), partitions=PARTITIONS), unique("g")
    first = Member(broker, group, topic, strategy)
    together([first], lambda: shared([first], [4]), "one member has all")
    second = Member(broker, group, topic, strategy)
    together([first, second], lambda: shared([first, second], [2, 2]), "two members share")
    third = Member(broker, group, topic, strategy)
    together([first, second, third], lambda: shared([first, second, third], [1, 1, 2]), "three members share")
    second.close()
    together([first, third], lambda: shared([first, third], [2, 2]), "two members share again")
    first.close()
    third.close()
    admin = admin_of(broker.bootstrap_servers)
    wait_until(
        lambda: admin.describe_consumer_groups([group])[group].result(120).state.name == "EMPTY", "all have left"
    )
    if strategy == "cooperative-sticky":
        # Nothing that a member keeps is taken away and given back.
        assert all(set(one).isdisjoint(two) for one, two in zip(first.assignments, first.assignments[1:], strict=False))


def test_a_member_that_dies_is_replaced_after_its_session(broker: Broker, unique: Callable[[str], str]) -> None:
    topic, group = create_topic(broker, unique("t"), partitions=PARTITIONS), unique("g")
    program = (
        "import sys, confluent_kafka\n"
        "c = confluent_kafka.Consumer({'bootstrap.servers': sys.argv[1], 'group.id': sys.argv[2],"
        " 'session.timeout.ms': 3000, 'heartbeat.interval.ms': 200})\n"
        "c.subscribe([sys.argv[3]], on_assign=lambda _, p: print(len(p), flush=True))\n"
        "while True: c.poll(0.1)\n"
    )
    command = [sys.executable, "-c", program, broker.bootstrap_servers, group, topic]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"4\n"
        survivor = Member(broker, group, topic)
        together([survivor], lambda: len(survivor.assigned) == 2, "the two share")
        os.kill(process.pid, signal.SIGKILL)
        together([survivor], lambda: len(survivor.assigned) == 4, "the survivor has all")
        survivor.close()
    finally:
        process.kill()
        process.wait()


def test_a_static_member_comes_back_without_a_rebalance(broker: Broker, unique: Callable[[str], str]) -> None:
    topic, group = create_topic(broker, unique("t"), partitions=PARTITIONS), unique("g")
    first = Member(broker, group, topic, **{"group.instance.id": "one"})
    together([first], lambda: shared([first], [4]), "one member has all")
    second = Member(broker, group, topic, **{"group.instance.id": "two"})
    together([first, second], lambda: shared([first, second], [2, 2]), "two members share")
    rebalances, had = len(first.assignments), second.assigned
    second.close()
    again = Member(broker, group, topic, **{"group.instance.id": "two"})
    together([first, again], lambda: again.assigned == had, "the member has its partitions back")
    assert len(first.assignments) == rebalances
    first.close()
    again.close()


def test_a_group_goes_on_where_it_committed(broker: Broker, unique: Callable[[str], str]) -> None:
    topic, group = create_topic(broker, unique("t"), partitions=PARTITIONS), unique("g")
    messages = [Message(b"%d" % number, partition=number % PARTITIONS) for number in range(40)]
    CLIENTS["confluent-kafka"].produce(broker.bootstrap_servers, topic, messages)
    first = Member(broker, group, topic)
    together([first], lambda: len(first.read) >= 10, "ten messages are read")
    for message in first.read:
        first.consumer.commit(message=message, asynchronous=False)
    done = {message.value() for message in first.read}
    first.close()
    second = Member(broker, group, topic)
    together([second], lambda: len(second.read) + len(done) >= 40, "the rest is read")
    second.close()
    rest = {message.value() for message in second.read}
    assert done | rest == {message.value for message in messages}
    assert not done & rest


def test_every_message_is_read_once_while_the_group_changes(broker: Broker, unique: Callable[[str], str]) -> None:
    """Offsets are committed before partitions change hands, so nothing is read twice or left out."""
    topic, group = create_topic(broker, unique("t"), partitions=PARTITIONS), unique("g")
    client = CLIENTS["confluent-kafka"]
    messages = [Message(b"%d" % number, partition=number % PARTITIONS) for number in range(200)]
    settings = {"enable.auto.commit": True, "enable.auto.offset.store": True, "auto.commit.interval.ms": 100}
    members = [Member(broker, group, topic, **settings)]
    client.produce(broker.bootstrap_servers, topic, messages[:100])
    together(members, lambda: len(members[0].read) >= 50, "half of the first half is read")
    members.append(Member(broker, group, topic, **settings))
    client.produce(broker.bootstrap_servers, topic, messages[100:])
    together(members, lambda: sum(len(member.read) for member in members) >= 200, "everything is read")
    for member in members:
        member.close()
    found = sorted(int(message.value()) for member in members for message in member.read)
    assert found == list(range(200))


def python_settings(broker: Broker, group: str) -> dict[str, Any]:
    """kafka-python and aiokafka have the same names for them."""
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 25_000,
        "heartbeat_interval_ms": 300,
    }


def all_committed(broker: Broker, group: str, topic: str) -> bool:
    """All of forty messages."""
    offsets = [committed_offset(broker, group, topic, partition) for partition in range(PARTITIONS)]
    return offsets == [40 // PARTITIONS] * PARTITIONS


def test_kafka_python_members_share_and_commit(broker: Broker, unique: Callable[[str], str]) -> None:
    topic, group = create_topic(broker, unique("t"), partitions=PARTITIONS), unique("g")
    messages = [Message(b"%d" % number, partition=number % PARTITIONS) for number in range(40)]
    CLIENTS["kafka-python"].produce(broker.bootstrap_servers, topic, messages)

    found: list[bytes] = []
    shares: dict[int, int] = {}
    stopped = threading.Event()

    def run(number: int) -> None:
        consumer = kafka.KafkaConsumer(topic, **python_settings(broker, group))
        while not stopped.is_set():
            # Not 100 ms: it asks for metadata again after that time and joins then, and a poll that ends between its
            # JoinGroup and its SyncGroup makes it forget what it is assigned, whatever the broker.
            for records in consumer.poll(1000).values():
                found.extend(record.value for record in records)
            shares[number] = len(consumer.assignment())
            # A commit that meets a rebalance is refused; the next one follows.
            with contextlib.suppress(kafka.errors.CommitFailedError):
                consumer.commit()
        consumer.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(set(found)) == 40 and list(shares.values()) == [2, 2], "two members share and read all")
        wait_until(lambda: all_committed(broker, group, topic), "both have committed")
    finally:
        stopped.set()
        for thread in threads:
            thread.join(120)


def test_aiokafka_members_share_and_commit(broker: Broker, unique: Callable[[str], str]) -> None:
    topic, group = create_topic(broker, unique("t"), partitions=PARTITIONS), unique("g")
    messages = [Message(b"%d" % number, partition=number % PARTITIONS) for number in range(40)]
    CLIENTS["aiokafka"].produce(broker.bootstrap_servers, topic, messages)

    async def run() -> list[bytes]:
        members = [aiokafka.AIOKafkaConsumer(topic, **python_settings(broker, group)) for _ in range(2)]
        found: list[bytes] = []
        for member in members:
            await member.start()
        deadline = time.monotonic() + 120
        is_done = False
        while not is_done and time.monotonic() < deadline:
            is_done = all(len(member.assignment()) == 2 for member in members)
            for member in members:
                for records in (await member.getmany(timeout_ms=100)).values():
                    found += [record.value for record in records]
                try:
                    await member.commit()
                except aiokafka.errors.CommitFailedError:
                    is_done = False  # it has met a rebalance; the next one follows
            is_done &= len(set(found)) == 40
        for member in members:
            await member.stop()
        return found

    found = asyncio.run(run())
    assert {int(value) for value in found} == set(range(40))
    assert all_committed(broker, group, topic)


CLASSIC_ONLY = {"group_coordinator_rebalance_protocols": "classic"}
AT_ONCE_S = 20
"""Clients that wait in silence do so for 25 s and more."""


def test_a_consumer_of_the_new_protocol_is_told_at_once_that_it_is_not_served(
    new_broker: Callable[..., Broker],
) -> None:
    broker = new_broker(**CLASSIC_ONLY)
    topic = create_topic(broker, "t")
    warm_up(broker.bootstrap_servers)  # the client looks for its coordinator first
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "group.protocol": "consumer"}
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.subscribe([topic])
        message = consumer.poll(AT_ONCE_S)
        assert message is not None and message.error() is not None, "nothing was reported"
        assert message.error().code() == confluent_kafka.KafkaError._FATAL
        assert "ConsumerGroupHeartbeat" in message.error().str() and "not supported" in message.error().str()
    finally:
        consumer.close()


@pytest.mark.usefixtures("java")
def test_a_java_consumer_of_the_new_protocol_ends_at_once(new_broker: Callable[..., Broker]) -> None:
    broker = new_broker(**CLASSIC_ONLY)
    topic = create_topic(broker, "t")
    ended = run_java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--group", "g"),
        *("--consumer-property", "group.protocol=consumer"),
        timeout_s=300,
    )
    assert "revert to the CLASSIC protocol" in ended.stderr, ended.stderr[-2000:]
