"""Fixtures: a broker, a PostgreSQL with a database per test, names that nobody else uses."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from oncelog.core import failpoints
from oncelog.testing.broker import broker
from peers.kafka.kafka import KafkaServer, kafka_available
from tests.connect.postgres import PostgresServer, postgres_server

_numbers = itertools.count()


@pytest.fixture
def unique() -> Callable[[str], str]:
    return lambda stem: f"{stem}-{next(_numbers)}"


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of an Oncelog, or of an Apache Kafka with ONCELOG_CONNECTORS_ON=kafka."""
    settings = {
        "group.initial.rebalance.delay.ms": 0,
        "num.partitions": 1,
        "log.cleaner.backoff.ms": 100,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    }
    if os.environ.get("ONCELOG_CONNECTORS_ON", "oncelog") == "kafka":
        if (problem := kafka_available()) is not None:
            pytest.skip(problem)
        server = KafkaServer(tmp_path_factory.mktemp("kafka"), properties={n: str(v) for n, v in settings.items()})
        server.start()
        try:
            yield server.bootstrap_servers
        finally:
            server.stop()
    else:
        with broker(settings) as process:
            yield process.bootstrap_servers


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer, unique: Callable[[str], str]) -> Iterator[str]:
    """The url of an empty database."""
    name = unique("db")
    yield postgres.create_database(name)
    postgres.drop_slots(name)


@pytest.fixture(autouse=True)
def _no_failpoints_left() -> Iterator[None]:
    yield
    failpoints.disarm_all()
