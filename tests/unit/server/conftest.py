from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.server.harness import BrokerInProcess


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerInProcess]:
    node = BrokerInProcess(
        tmp_path / "data", {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}
    )
    yield node
    node.broker.stop(clean=False)
