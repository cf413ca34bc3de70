"""A broker in this process for the tests of a module, with what the module calls SETTINGS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.core import failpoints
from tests.unit.server.harness import BrokerInProcess

FEW_PARTITIONS = {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    found: dict[str, str] = getattr(request.module, "SETTINGS", FEW_PARTITIONS)
    return found


@pytest.fixture
def node(tmp_path: Path, settings: dict[str, str]) -> Iterator[BrokerInProcess]:
    node = BrokerInProcess(tmp_path / "data", settings)
    yield node
    failpoints.disarm_all()
    node.broker.stop(clean=False)
