"""The metadata journal, cut at every byte: the broker starts on what is left and serves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from oncelog.cluster.node_facts import JOURNAL_FILE
from tests.simulation.conftest import FEW_PARTITIONS, memory  # noqa: F401  a fixture
from tests.simulation.scene import Scene

pytestmark = pytest.mark.crash


def test_a_broker_starts_on_a_journal_that_ends_at_any_byte(memory: Path) -> None:  # noqa: F811
    original = memory.with_name("original")
    with Scene(original, FEW_PARTITIONS).opened() as scene:
        scene.create("t", 2)
        producer = scene.producer("id")
        assert producer.send("t", "a") == 0
        assert producer.commit() == 0
        scene.station.crash()
    journal = (original / JOURNAL_FILE).read_bytes()
    ends = [position + 1 for position, byte in enumerate(journal) if byte == ord("\n")]
    for cut in range(len(journal) + 1):
        shutil.copytree(original, memory)
        (memory / JOURNAL_FILE).write_bytes(journal[:cut])
        with Scene(memory, FEW_PARTITIONS).opened() as scene:
            whole = [end for end in ends if end <= cut]
            if len(whole) == len(ends):
                assert scene.read("t") == ["a"], f"cut at byte {cut}"
            scene.create("new")
            assert scene.producer("id").send("new", "b") == 0, f"cut at byte {cut}"
        shutil.rmtree(memory)
