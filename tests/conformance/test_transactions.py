"""Transactions with three client libraries on every transaction.version: the same script, the same outcome on both
brokers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.conformance.brokers import Broker
from tests.conformance.clients import ClientError, Message
from tests.conformance.libraries import CLIENTS
from tests.conformance.test_produce_consume import create_topic
from tests.waiting import wait_until

NAMES = sorted(CLIENTS)
every_version = pytest.mark.parametrize("transaction_version", [0, 1, 2], indirect=True)
every_client = pytest.mark.parametrize("client", NAMES)

client_and_version = pytest.mark.parametrize(
    ("client", "transaction_version"),
    [("confluent-kafka", 0), ("confluent-kafka", 1), *((name, 2) for name in NAMES)],
    indirect=["transaction_version"],
)

FENCED = {47, 90, -144}
"""INVALID_PRODUCER_EPOCH and PRODUCER_FENCED, by the version a client speaks, and librdkafka's own code for both."""


def values(broker: Broker, topic: str, count: int, *, committed: bool, partition: int = 0) -> list[bytes | None]:
    reader = CLIENTS["confluent-kafka"]
    found = reader.consume(broker.bootstrap_servers, topic, count, partition=partition, committed=committed)
    return [message.value for message in found]


@functools.cache
def admin_of(bootstrap_servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap_servers})


def end_offset(broker: Broker, topic: str, *, committed: bool, partition: int = 0) -> int:
    """The high watermark, or the last stable offset."""
    admin = admin_of(broker.bootstrap_servers)
    where = TopicPartition(topic, partition)
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    offset: int = admin.list_offsets({where: OffsetSpec.latest()}, isolation_level=level)[where].result(120).offset
    return offset


def committed_offset(broker: Broker, group: str, topic: str, partition: int = 0) -> int:
    admin = admin_of(broker.bootstrap_servers)
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
    found = admin.list_consumer_group_offsets([wanted])[group].result(120)
    offset: int = found.topic_partitions[0].offset
    return offset


@every_version
@every_client
def test_committed_records_appear_together_and_aborted_ones_never(
    broker: Broker, unique: Callable[[str], str], client: str
) -> None:
    topic = create_topic(broker, unique("t"), partitions=2)
    producer = CLIENTS[client].transactional(broker.bootstrap_servers, unique("x"))
    for turn in range(4):
        producer.begin()
        for partition in (0, 1):
            producer.send(topic, b"%d" % turn, partition)
        if turn % 2:
            producer.abort()
        else:
            assert end_offset(broker, topic, committed=True) == turn * 2
            producer.commit()
    producer.close()
    for partition in (0, 1):
        wait_until(lambda where=partition: end_offset(broker, topic, committed=True, partition=where) == 8, "all ended")
        assert values(broker, topic, 2, committed=True, partition=partition) == [b"0", b"2"]
        assert values(broker, topic, 4, committed=False, partition=partition) == [b"0", b"1", b"2", b"3"]


@every_client
@pytest.mark.parametrize("reader", NAMES)
def test_every_reader_filters_aborted_records(
    broker: Broker, unique: Callable[[str], str], client: str, reader: str
) -> None:
    topic = create_topic(broker, unique("t"))
    producer = CLIENTS[client].transactional(broker.bootstrap_servers, unique("x"))
    plain = CLIENTS[client]
    for turn in range(6):
        producer.begin()
        producer.send(topic, b"transaction %d" % turn)
        plain.produce(broker.bootstrap_servers, topic, [Message(b"plain %d" % turn)])
        producer.send(topic, b"transaction %d again" % turn)
        (producer.abort if turn % 3 == 0 else producer.commit)()
    producer.close()
    wanted = []
    for turn in range(6):
        own = [] if turn % 3 == 0 else [b"transaction %d" % turn, b"transaction %d again" % turn]
        wanted += [*own[:1], b"plain %d" % turn, *own[1:]]
    found = CLIENTS[reader].consume(broker.bootstrap_servers, topic, len(wanted), committed=True)
    assert [message.value for message in found] == wanted


@every_version
@every_client
def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    broker: Broker, unique: Callable[[str], str], client: str
) -> None:
    topic, group = create_topic(broker, unique("t")), unique("g")
    producer = CLIENTS[client].transactional(broker.bootstrap_servers, unique("x"))
    producer.begin()
    producer.offsets(group, topic, 5)
    assert committed_offset(broker, group, topic) < 0
    producer.commit()
    wait_until(lambda: committed_offset(broker, group, topic) == 5, "the offset is committed")
    producer.begin()
    producer.offsets(group, topic, 9)
    producer.abort()
    producer.close()
    assert committed_offset(broker, group, topic) == 5


@every_version
@every_client
def test_a_second_producer_fences_the_first_and_aborts_its_transaction(
    broker: Broker, unique: Callable[[str], str], client: str
) -> None:
    topic, name = create_topic(broker, unique("t")), unique("x")
    first = CLIENTS[client].transactional(broker.bootstrap_servers, name)
    first.begin()
    first.send(topic, b"first")
    second = CLIENTS[client].transactional(broker.bootstrap_servers, name)
    with pytest.raises(ClientError) as fenced:
        first.commit()
    assert fenced.value.code in FENCED
    second.begin()
    second.send(topic, b"second")
    second.commit()
    first.close()
    second.close()
    assert values(broker, topic, 1, committed=True) == [b"second"]


@client_and_version
def test_a_transaction_that_takes_too_long_is_aborted(
    broker: Broker, unique: Callable[[str], str], client: str
) -> None:
    topic, name = create_topic(broker, unique("t")), unique("x")
    slow = CLIENTS[client].transactional(broker.bootstrap_servers, name, timeout_ms=3000)
    slow.begin()
    slow.send(topic, b"slow")
    assert end_offset(broker, topic, committed=True) == 0
    wait_until(lambda: end_offset(broker, topic, committed=True) == 2, "the coordinator aborts the transaction")
    with pytest.raises(ClientError):
        slow.commit()
    slow.close()
    again = CLIENTS[client].transactional(broker.bootstrap_servers, name)
    again.begin()
    again.send(topic, b"again")
    again.commit()
    again.close()
    assert values(broker, topic, 1, committed=True) == [b"again"]


@every_version
def test_the_oldest_open_transaction_holds_everything_after_it_back(
    broker: Broker, unique: Callable[[str], str]
) -> None:
    topic = create_topic(broker, unique("t"))
    client = CLIENTS["confluent-kafka"]
    long, short = (client.transactional(broker.bootstrap_servers, unique("x")) for _ in range(2))
    long.begin()
    long.send(topic, b"long")
    for turn in range(3):
        short.begin()
        short.send(topic, b"%d" % turn)
        short.commit()
    wait_until(lambda: end_offset(broker, topic, committed=False) == 7, "the markers are written")
    assert end_offset(broker, topic, committed=True) == 0
    long.commit()
    wait_until(lambda: end_offset(broker, topic, committed=True) == 8, "everything is stable")
    assert values(broker, topic, 4, committed=True) == [b"long", b"0", b"1", b"2"]
    long.close()
    short.close()


def test_many_producers_at_once(broker: Broker, unique: Callable[[str], str]) -> None:
    topic = create_topic(broker, unique("t"), partitions=4)
    producers = [CLIENTS["confluent-kafka"].transactional(broker.bootstrap_servers, unique("x")) for _ in range(12)]
    for turn in range(3):
        for producer in producers:
            producer.begin()
        for number, producer in enumerate(producers):
            producer.send(topic, b"%d-%d" % (turn, number), number % 4)
        for number, producer in enumerate(producers):
            (producer.abort if (turn + number) % 3 == 0 else producer.commit)()
    for producer in producers:
        producer.close()
    for partition in range(4):
        mine = [number for number in range(12) if number % 4 == partition]
        wanted = sorted(b"%d-%d" % (turn, number) for turn in range(3) for number in mine if (turn + number) % 3)
        assert sorted(values(broker, topic, len(wanted), committed=True, partition=partition)) == wanted  # type: ignore[type-var]
