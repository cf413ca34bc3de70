"""A broker for the questions that need a real one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from oncelog.client import Admin, ClientConfig, Producer
from oncelog.testing import BrokerProcess, broker

SETTINGS = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}
_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_broker() -> Iterator[BrokerProcess]:
    with broker(SETTINGS) as process:
        yield process


@pytest.fixture
def admin(shared_broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(ClientConfig(bootstrap_servers=shared_broker.bootstrap_servers)) as client:
        yield client


@pytest.fixture
def topic(admin: Admin) -> str:
    """A new topic of one partition."""
    name = f"topic-{next(_numbers)}"
    admin.create_topics([name])
    return name


@pytest.fixture
def transactional(shared_broker: BrokerProcess) -> Iterator[Callable[[str], Producer]]:
    """Transactional producers, initialised."""
    made: list[Producer] = []

    def make(transactional_id: str) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": shared_broker.bootstrap_servers,
                "transactional.id": transactional_id,
            }
        )
        made.append(producer)
        producer.init_transactions()
        return producer

    yield make
    for producer in made:
        producer.close(timeout_ms=2_000)
