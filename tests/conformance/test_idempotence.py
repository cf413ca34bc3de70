"""Idempotent producers and broker crashes: every acknowledged record is there once, in order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

import oncelog.testing
from tests.conformance.brokers import Broker
from tests.conformance.clients import Message
from tests.conformance.libraries import CLIENTS
from tests.conformance.test_produce_consume import create_topic
from tests.conformance.test_transactions import values
from tests.waiting import wait_until

only_oncelog = pytest.mark.parametrize("broker_kind", ["oncelog"], indirect=True)
"""Apache Kafka takes ten seconds to come back after kill -9."""


def test_records_stay_in_order_and_single_with_many_requests_in_flight(
    broker: Broker, unique: Callable[[str], str]
) -> None:
    topic = create_topic(broker, unique("t"))
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "batch.num.messages": 10,
            "linger.ms": 0,
        }
    )
    for number in range(3000):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(120) == 0
    found = CLIENTS["confluent-kafka"].consume(broker.bootstrap_servers, topic, 3000)
    assert [message.value for message in found] == [b"%d" % number for number in range(3000)]


def test_a_record_behind_an_aborted_one_without_an_answer_is_not_acknowledged_and_lost() -> None:
    """librdkafka 2.16 gives it the number of the aborted one. Apache Kafka 4.3 takes it for that one, acknowledges it,
    commits the transaction, and nobody ever reads it: a deviation."""
    with oncelog.testing.broker() as process:
        topic = process.create_topic("t")
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": process.bootstrap_servers,
                "transactional.id": "lost-count",
                "linger.ms": 0,
                "retry.backoff.ms": 3_000,
                "log_level": 0,
            }
        )
        producer.init_transactions(120)
        process.lose_answers("Produce")
        producer.begin_transaction()
        producer.produce(topic, b"aborted", partition=0)
        log = process.data_dir / f"{topic}-0" / "00000000000000000000.log"
        wait_until(lambda: log.exists() and b"aborted" in log.read_bytes())
        producer.abort_transaction(120)
        producer.begin_transaction()
        acknowledged: list[bytes] = []
        producer.produce(
            topic,
            b"wanted",
            partition=0,
            on_delivery=lambda error, message: acknowledged.append(message.value()) if error is None else None,
        )
        with contextlib.suppress(confluent_kafka.KafkaException):
            producer.commit_transaction(30)
            acknowledged.append(b"the commit")
        if acknowledged:
            assert b"wanted" in log.read_bytes()


@only_oncelog
def test_acknowledged_records_survive_kill_9_once(
    new_broker: Callable[..., Broker], unique: Callable[[str], str]
) -> None:
    broker = new_broker()
    topic = create_topic(broker, unique("t"))
    acknowledged: list[bytes] = []

    def note(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.append(message.value())

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "batch.num.messages": 5,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
        }
    )
    stopped = threading.Event()

    def write() -> None:
        number = 0
        while not stopped.is_set():
            producer.produce(topic, b"%d" % number, partition=0, on_delivery=note)
            producer.poll(0.001)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_until(lambda: len(acknowledged) > 100, "the first hundred are acknowledged")
        broker.kill()
        broker.start()
        before = len(acknowledged)
        wait_until(lambda: len(acknowledged) > before + 100, "a hundred more are acknowledged after the restart")
    finally:
        stopped.set()
        writer.join(120)
    assert producer.flush(120) == 0
    found = values(broker, topic, len(acknowledged), committed=False)
    # An acknowledgement may have been lost with the process, but nothing acknowledged and nothing twice.
    assert len(set(found)) == len(found)
    assert set(acknowledged) <= set(found)
    assert found == sorted(found, key=lambda value: int(value or b""))


@only_oncelog
def test_an_open_transaction_survives_kill_9_and_commits(
    new_broker: Callable[..., Broker], unique: Callable[[str], str]
) -> None:
    """The coordinator comes back with the transaction as it was: the same producer goes on and commits."""
    broker = new_broker()
    topic = create_topic(broker, unique("t"), partitions=2)
    producer = CLIENTS["confluent-kafka"].transactional(broker.bootstrap_servers, unique("x"))
    producer.begin()
    producer.send(topic, b"before")
    broker.kill()
    broker.start()
    producer.send(topic, b"after", 1)
    producer.commit()
    producer.close()
    plain = CLIENTS["confluent-kafka"]
    plain.produce(broker.bootstrap_servers, topic, [Message(b"plain"), Message(b"plain", partition=1)])
    assert values(broker, topic, 2, committed=True) == [b"before", b"plain"]
    assert values(broker, topic, 2, committed=True, partition=1) == [b"after", b"plain"]
