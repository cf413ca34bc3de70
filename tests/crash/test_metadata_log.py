"""The metadata log, cut at many bytes: the broker starts on what is left and serves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from oncelog.protocol.batch import iter_headers
from tests.simulation.conftest import FEW_PARTITIONS, memory  # noqa: F401  a fixture
from tests.simulation.scene import Scene

pytestmark = pytest.mark.crash

LOG = Path("__cluster_metadata-0", "00000000000000000000.log")
STEP_BYTES = 7
"""Coprime to the sizes of fields: together the cuts come to all of them."""


def test_a_broker_starts_on_a_metadata_log_that_ends_anywhere(memory: Path) -> None:  # noqa: F811
    original = memory.with_name("original")
    with Scene(original, FEW_PARTITIONS).opened() as scene:
        scene.create("t", 2)
        producer = scene.producer("id")
        assert producer.send("t", "a") == 0
        assert producer.commit() == 0
        scene.station.crash()
    data = (original / LOG).read_bytes()
    ends = [position + header.size_bytes for position, header in iter_headers(data)]
    assert ends[-1] == len(data)
    around = {end + offset for end in ends for offset in (-1, 0, 1)}
    for cut in sorted({*range(0, len(data), STEP_BYTES), *around} - {len(data) + 1}):
        shutil.copytree(original, memory)
        (memory / LOG).write_bytes(data[:cut])
        # Another seed, since ids of topics are random and the lost ones are in the logs.
        with Scene(memory, FEW_PARTITIONS, seed=2).opened() as scene:
            if cut == len(data):
                assert scene.read("t") == ["a"], f"cut at byte {cut}"
            scene.create("new")
            assert scene.producer("id").send("new", "b") == 0, f"cut at byte {cut}"
        shutil.rmtree(memory)
