"""Fixtures of the client's tests: a real broker, the misbehaving one in front of it, and names nobody else uses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from oncelog.client import Admin, ClientConfig, NewTopic
from oncelog.core.broker_config import STANDARD_AUTHORIZER
from oncelog.testing.broker import BrokerProcess, broker
from tests.unit.client.chaos import Chaos
from tests.unit.client.reading import Reading

_numbers = itertools.count()


@pytest.fixture
def unique() -> Callable[[str], str]:
    return lambda stem: f"{stem}-{next(_numbers)}"


@pytest.fixture(scope="session")
def oncelog_broker() -> Iterator[BrokerProcess]:
    """One that has ACLs, and lets everybody do everything, also write markers."""
    with broker({"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}) as process:
        yield process


@pytest.fixture
def servers(oncelog_broker: BrokerProcess) -> str:
    return oncelog_broker.bootstrap_servers


@pytest.fixture
def config(servers: str) -> ClientConfig:
    return ClientConfig(bootstrap_servers=servers)


@pytest.fixture(scope="module")
def module_admin(oncelog_broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(ClientConfig(bootstrap_servers=oncelog_broker.bootstrap_servers)) as admin:
        yield admin


@pytest.fixture
def topic(module_admin: Admin, unique: Callable[[str], str]) -> str:
    """A new topic with two partitions."""
    name = unique("topic")
    module_admin.create_topics([NewTopic(name, 2, 1)])
    return name


@pytest.fixture
def chaos(servers: str) -> Iterator[Chaos]:
    with Chaos(servers) as misbehaving:
        yield misbehaving


@pytest.fixture(scope="module")
def reading(oncelog_broker: BrokerProcess) -> Iterator[Reading]:
    with Reading(oncelog_broker.bootstrap_servers) as reader:
        yield reader
