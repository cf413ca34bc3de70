"""Brokers to be killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import oncelog.testing
from oncelog.testing import BrokerProcess
from tests.crash.killer import BUSY_SETTINGS, SETTINGS

StartBroker = Callable[[dict[str, object]], BrokerProcess]


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Starts the test's broker with the settings it is given; it is stopped with the test."""
    with ExitStack() as brokers:
        yield lambda settings: brokers.enter_context(
            oncelog.testing.broker(settings, data_dir=tmp_path / "data", log_level="info")
        )


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker(SETTINGS)


@pytest.fixture
def busy_broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker(BUSY_SETTINGS)
