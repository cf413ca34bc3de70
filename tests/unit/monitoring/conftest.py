"""A broker for the questions that need a real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog.testing import BrokerProcess, broker

SETTINGS = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}


@pytest.fixture(scope="session")
def shared_broker() -> Iterator[BrokerProcess]:
    with broker(SETTINGS) as process:
        yield process


@pytest.fixture
def servers(shared_broker: BrokerProcess) -> str:
    return shared_broker.bootstrap_servers
