"""Fixtures: a broker, a PostgreSQL with a database per test, names that nobody else uses."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from oncelog.client import Admin, ClientConfig
from oncelog.core import failpoints
from oncelog.testing.broker import BrokerProcess, broker
from tests.connect.postgres import PostgresServer, postgres_server

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("ONCELOG_CONNECTORS") != "all":
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="make test-connectors runs it"))


@pytest.fixture
def unique() -> Callable[[str], str]:
    return lambda stem: f"{stem}-{next(_numbers)}"


@pytest.fixture(scope="session")
def log_broker() -> Iterator[BrokerProcess]:
    with broker({"group.initial.rebalance.delay.ms": 0}) as process:
        yield process


@pytest.fixture
def servers(log_broker: BrokerProcess) -> str:
    return log_broker.bootstrap_servers


@pytest.fixture
def admin(servers: str) -> Iterator[Admin]:
    with Admin(ClientConfig(bootstrap_servers=servers)) as made:
        yield made


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer, unique: Callable[[str], str]) -> str:
    """The url of an empty database."""
    return postgres.create_database(unique("db"))


@pytest.fixture(autouse=True)
def _no_failpoints_left() -> Iterator[None]:
    yield
    failpoints.disarm_all()
