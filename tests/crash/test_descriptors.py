"""A broker with few descriptors, all of them in use: partitions take writes, whatever connections there are."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from oncelog.server.descriptors import RESERVED
from oncelog.testing import BrokerProcess

pytestmark = pytest.mark.crash

DESCRIPTORS = 256
PARTITIONS = 110
CONNECTIONS = (DESCRIPTORS - RESERVED) // 2 - 10
"""Some are left for the clients of the test."""
TOPIC = "many"


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    """One that may open no more than `DESCRIPTORS` files."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -n {DESCRIPTORS}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    settings: dict[str, object] = {"transaction.state.log.num.partitions": 1}
    broker = BrokerProcess(tmp_path / "data", settings).start()
    yield broker
    broker.stop()


def send_to_all(producer: Producer) -> None:
    refused: list[str] = []
    for partition in range(PARTITIONS):
        producer.produce(
            TOPIC, b"x", partition=partition, on_delivery=lambda error, _: error and refused.append(str(error))
        )
    assert producer.flush(60) == 0
    assert refused == []


def abort(producer: Producer) -> None:
    producer.begin_transaction()
    send_to_all(producer)
    producer.abort_transaction(60)


def new_producer(broker: BrokerProcess, transactional_id: str | None = None) -> Producer:
    settings: dict[str, object] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "log_level": 0,
        "enable.idempotence": True,
    }
    if transactional_id is not None:
        settings["transactional.id"] = transactional_id
    return Producer(settings)


def test_aborts_on_many_partitions_with_all_connections_taken_leave_none_that_refuses_writes(
    broker: BrokerProcess,
) -> None:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    producer = new_producer(broker, "aborts")
    producer.init_transactions(60)
    abort(producer)
    with ExitStack() as connections:
        for _ in range(CONNECTIONS):
            connections.enter_context(socket.create_connection((host, int(port))))
        for _ in range(3):
            abort(producer)
    send_to_all(new_producer(broker))
    written = broker.log_path.read_text()
    assert "Too many open files" not in written
    assert len(written.splitlines()) < 100
