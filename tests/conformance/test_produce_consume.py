"""Records written by one client library and read by another: keys, headers, timestamps, codecs, sizes,
acknowledgements.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.conformance.brokers import Broker
from tests.conformance.clients import ClientError, Message
from tests.conformance.libraries import CLIENTS
from tests.waiting import wait_until

NAMES = sorted(CLIENTS)
START_MS = 1_700_000_000_000
MESSAGE_TOO_LARGE = 10
EVERYTHING = [
    Message(b"value", b"key", timestamp_ms=START_MS),
    Message(b"no key", timestamp_ms=START_MS + 5),
    Message(None, b"tombstone", timestamp_ms=START_MS + 5),
    Message(b"", b"", timestamp_ms=START_MS + 1),
    Message(b"with headers", b"k", headers=(("h", b"1"), ("h", b"2"), ("", b"")), timestamp_ms=START_MS + 70),
    Message("äöü€".encode(), "schlüssel".encode(), timestamp_ms=START_MS + 60),
    Message(bytes(range(256)) * 40, timestamp_ms=START_MS + 80),
]


def create_topic(broker: Broker, name: str, partitions: int = 1, **settings: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {key.replace("_", "."): value for key, value in settings.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(120)
    await_topic(admin, name, partitions)
    return name


def await_topic(admin: AdminClient, name: str, partitions: int) -> None:
    """Apache Kafka's controller answers a change before its broker knows of it."""

    def is_led() -> bool:
        found = admin.list_topics(name, 60).topics[name]
        return len(found.partitions) == partitions and all(part.error is None for part in found.partitions.values())

    wait_until(is_led, f"{name} has {partitions} partitions, each with a leader")


@pytest.mark.parametrize("reader", NAMES)
@pytest.mark.parametrize("writer", NAMES)
def test_one_client_reads_what_another_wrote(
    broker: Broker, unique: Callable[[str], str], writer: str, reader: str
) -> None:
    topic = create_topic(broker, unique("t"))
    offsets = CLIENTS[writer].produce(broker.bootstrap_servers, topic, EVERYTHING)
    found = CLIENTS[reader].consume(broker.bootstrap_servers, topic, len(EVERYTHING))
    assert offsets == list(range(len(EVERYTHING)))
    assert found == EVERYTHING
    assert [message.offset for message in found] == offsets


@pytest.mark.parametrize(("writer", "codec"), [(name, codec) for name in NAMES for codec in CLIENTS[name].codecs])
def test_every_codec_is_read_by_every_client(
    broker: Broker, unique: Callable[[str], str], writer: str, codec: str
) -> None:
    topic = create_topic(broker, unique("t"))
    messages = [Message(b"abcdefgh" * 50 + b"%d" % number, timestamp_ms=START_MS) for number in range(50)]
    CLIENTS[writer].produce(broker.bootstrap_servers, topic, messages, codec=codec)
    readers = [client for client in CLIENTS.values() if codec in client.codecs]
    for reader in readers:
        assert reader.consume(broker.bootstrap_servers, topic, len(messages)) == messages, reader.name


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("writer", NAMES)
def test_every_acknowledgement(broker: Broker, unique: Callable[[str], str], writer: str, acks: int | str) -> None:
    topic = create_topic(broker, unique("t"))
    messages = [Message(b"%d" % number, timestamp_ms=START_MS) for number in range(20)]
    CLIENTS[writer].produce(broker.bootstrap_servers, topic, messages, acks=acks)
    assert CLIENTS[writer].consume(broker.bootstrap_servers, topic, len(messages)) == messages


@pytest.mark.parametrize("writer", NAMES)
def test_a_large_message_goes_through_and_a_larger_one_is_refused(
    broker: Broker, unique: Callable[[str], str], writer: str
) -> None:
    topic = create_topic(broker, unique("t"))
    large = Message(b"x" * 1_000_000, timestamp_ms=START_MS)
    CLIENTS[writer].produce(broker.bootstrap_servers, topic, [large])
    with pytest.raises(ClientError) as refused:
        CLIENTS[writer].produce(broker.bootstrap_servers, topic, [Message(b"x" * 1_100_000)])
    assert refused.value.code == MESSAGE_TOO_LARGE
    assert CLIENTS[writer].consume(broker.bootstrap_servers, topic, 1) == [large]


@pytest.mark.parametrize("reader", NAMES)
def test_a_reader_may_start_anywhere(broker: Broker, unique: Callable[[str], str], reader: str) -> None:
    topic = create_topic(broker, unique("t"), partitions=2)
    messages = [Message(b"%d" % number, partition=1, timestamp_ms=START_MS) for number in range(100)]
    CLIENTS[reader].produce(broker.bootstrap_servers, topic, messages)
    found = CLIENTS[reader].consume(broker.bootstrap_servers, topic, 40, partition=1, start=60)
    assert [message.offset for message in found] == list(range(60, 100))


@pytest.mark.parametrize("writer", NAMES)
def test_a_topic_is_created_by_its_first_use(broker: Broker, unique: Callable[[str], str], writer: str) -> None:
    topic = unique("auto")
    CLIENTS[writer].produce(broker.bootstrap_servers, topic, [Message(b"first", timestamp_ms=START_MS)])
    assert [message.value for message in CLIENTS[writer].consume(broker.bootstrap_servers, topic, 1)] == [b"first"]


def test_a_waiting_reader_is_served_at_once(broker: Broker, unique: Callable[[str], str]) -> None:
    topic = create_topic(broker, unique("t"))
    patience = {"fetch.wait.max.ms": 60_000, "socket.timeout.ms": 120_000}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused", **patience}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    assert consumer.poll(1) is None
    CLIENTS["confluent-kafka"].produce(broker.bootstrap_servers, topic, [Message(b"now")])
    written_at = time.monotonic()
    message = consumer.poll(40)
    waited = time.monotonic() - written_at
    consumer.close()
    assert message is not None
    assert message.value() == b"now"
    assert waited < 30


def test_log_append_time_replaces_the_client_s(broker: Broker, unique: Callable[[str], str]) -> None:
    topic = create_topic(broker, unique("t"), message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    CLIENTS["confluent-kafka"].produce(broker.bootstrap_servers, topic, [Message(b"v", timestamp_ms=START_MS)])
    for client in CLIENTS.values():
        (found,) = client.consume(broker.bootstrap_servers, topic, 1)
        assert found.timestamp_ms is not None
        assert before - 1000 <= found.timestamp_ms <= int(time.time() * 1000) + 1000, client.name


def test_offsets_by_time_and_by_name(broker: Broker, unique: Callable[[str], str]) -> None:
    topic = create_topic(broker, unique("t"))
    times = [10, 20, 15, 50, 30, 40]
    for seconds in times:
        message = Message(b"%d" % seconds, timestamp_ms=START_MS + seconds * 1000)
        CLIENTS["confluent-kafka"].produce(broker.bootstrap_servers, topic, [message])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    where = confluent_kafka.TopicPartition(topic, 0)

    def listed(spec: OffsetSpec) -> tuple[int, int]:
        found = admin.list_offsets({where: spec})[where].result(120)
        return found.offset, found.timestamp

    assert listed(OffsetSpec.earliest()) == (0, -1)
    assert listed(OffsetSpec.latest()) == (6, -1)
    assert listed(OffsetSpec.max_timestamp()) == (3, START_MS + 50_000)
    assert listed(OffsetSpec.for_timestamp(START_MS + 15_000)) == (1, START_MS + 20_000)
    assert listed(OffsetSpec.for_timestamp(START_MS + 21_000)) == (3, START_MS + 50_000)
    assert listed(OffsetSpec.for_timestamp(START_MS + 51_000)) == (-1, -1)
