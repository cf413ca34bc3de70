"""The pytest plugin: `oncelog_broker`, one broker for the whole test run, started when first asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog.testing.broker import BrokerProcess, broker


@pytest.fixture(scope="session")
def oncelog_broker() -> Iterator[BrokerProcess]:
    """A Kafka-compatible broker at `oncelog_broker.bootstrap_servers`."""
    with broker() as process:
        yield process
