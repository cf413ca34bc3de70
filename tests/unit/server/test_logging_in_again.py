"""Sessions that end: clients that log in again on their connection."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from oncelog.client import Consumer, Producer
from oncelog.testing.broker import BrokerProcess

USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_eve="pw";'
SESSION_MS = 4_000
"""Clients log in again when a twentieth of it is left."""
LASTS_S = 9.0
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    "connections.max.reauth.ms": SESSION_MS,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("sessions")
    broker = BrokerProcess(
        folder / "data", SETTINGS, log_level="debug", arguments=["--listen", "SASL_PLAINTEXT://127.0.0.1:0"]
    )
    broker.start()
    yield broker
    broker.stop()


def settings_of(broker: BrokerProcess) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "eve",
        "sasl.password": "pw",
    }


def read_all(broker: BrokerProcess, topic: str, count: int) -> list[bytes | None]:
    settings = {**settings_of(broker), "auto.offset.reset": "earliest", "group.id": topic}
    values: list[bytes | None] = []
    with Consumer({**settings, "isolation.level": "read_committed"}) as consumer:
        consumer.subscribe([topic])
        deadline_s = time.monotonic() + 120
        while len(values) < count and time.monotonic() < deadline_s:
            values += [record.value for record in consumer.poll(500)]
    return values


def test_our_client_goes_on_over_the_ends_of_its_sessions(broker: BrokerProcess) -> None:
    sent = []
    with Producer({**settings_of(broker), "transactional.id": "x"}) as producer:
        producer.init_transactions()
        end_s = time.monotonic() + LASTS_S
        while time.monotonic() < end_s:
            producer.begin_transaction()
            value = str(len(sent)).encode()
            producer.send("ours", value).result(60)
            producer.commit_transaction()
            sent.append(value)
            time.sleep(0.02)
    assert read_all(broker, "ours", len(sent)) == sent


def stretches(broker: BrokerProcess) -> Iterator[None]:
    """One after the other until one was long enough and no client came too late, as it can on a busy machine."""
    deadline_s = time.monotonic() + 240
    while time.monotonic() < deadline_s:
        before = broker.log_path.read_text()
        yield
        since = broker.log_path.read_text()[len(before) :]
        if "its session has ended" not in since and since.count("User:eve logged in") >= 2:
            return
    pytest.fail("connections are cut off at the end of each session")


def test_our_client_keeps_its_connection_and_what_is_asked_meanwhile_arrives_in_order(broker: BrokerProcess) -> None:
    sent: list[bytes] = []
    with Producer({**settings_of(broker), "linger.ms": 0}) as producer:
        for _ in stretches(broker):
            end_s = time.monotonic() + LASTS_S
            waiting = []
            while time.monotonic() < end_s:
                value = str(len(sent)).encode()
                waiting.append(producer.send("in-order", value))
                sent.append(value)
                time.sleep(0.002)
            for each in waiting:
                each.result(60)
    assert read_all(broker, "in-order", len(sent)) == sent


def test_librdkafka_logs_in_again_on_its_connection(broker: BrokerProcess) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    troubles: list[Any] = []
    delivered: list[Any] = []
    producer = confluent.Producer({**settings_of(broker), "error_cb": troubles.append})
    for _ in stretches(broker):
        troubles.clear()
        end_s = time.monotonic() + LASTS_S
        while time.monotonic() < end_s:
            producer.produce("theirs", b"x", on_delivery=lambda error, _: delivered.append(error))
            producer.flush(20)
            time.sleep(0.02)
    assert set(delivered) == {None}
    assert troubles == []
