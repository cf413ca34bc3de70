from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.scene import Scene
from tests.simulation.station import memory_folder

FEW_PARTITIONS: Final = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}
"""Of the internal topics: fewer files, faster starts."""


@pytest.fixture
def memory() -> Iterator[Path]:
    """A data folder to be, in memory if possible."""
    with tempfile.TemporaryDirectory(prefix="oncelog-sim-", dir=memory_folder()) as folder:
        yield Path(folder) / "data"


@pytest.fixture
def scene(memory: Path) -> Iterator[Scene]:
    with Scene(memory, FEW_PARTITIONS).opened() as scene:
        yield scene
