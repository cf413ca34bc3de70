"""Registries on a broker that is empty at the start of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog.testing.broker import BrokerProcess
from tests.registries import serving_registry


@pytest.fixture
def registry(fresh_oncelog_broker: BrokerProcess) -> Iterator[str]:
    """The address of one."""
    with serving_registry(fresh_oncelog_broker.bootstrap_servers) as address:
        yield address
