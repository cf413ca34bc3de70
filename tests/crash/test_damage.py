"""Files of a stopped or killed broker damaged one by one: it starts, says what it repaired, and shows the same records.

What the unit tests leave out is here: transaction indexes, and the files by which damage to others is noticed.
"""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.storage.checkpoints import SUMS
from oncelog.storage.segment_notes import FILE_NAME as NOTES
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_damaged_folder import SETTINGS, Damage, check, fill, shown

pytestmark = pytest.mark.crash

DAMAGES_PER_FILE = 6


@pytest.fixture(params=["stopped", "killed", "killed after a checkpoint"])
def original(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    fill(node)
    if request.param == "killed after a checkpoint":
        node.broker.log_dir.checkpoint(node.broker.high_watermarks())
    node.broker.stop(clean=request.param == "stopped")
    return tmp_path / "data"


def damages(folder: Path) -> Iterator[Damage]:
    """Missing, cut at the last entry and before it, and with another bit."""
    chosen = random.Random(3)
    for path in sorted(folder.rglob("*")):
        if path.suffix != ".txnindex" and path.name not in (NOTES, SUMS):
            continue
        name, size = str(path.relative_to(folder)), path.stat().st_size
        yield Damage(name, "missing")
        for _ in range(DAMAGES_PER_FILE):
            yield Damage(name, "cut", chosen.randrange(max(0, size - 34), size))
            yield Damage(name, "flip", chosen.randrange(size))


def test_damage_to_what_has_no_checksum_of_its_own_changes_nothing(
    original: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(original, whole)
    node = BrokerInProcess(whole, SETTINGS)
    expected = shown(node)
    node.broker.stop(clean=False)
    all_damages = list(damages(original))
    assert any(damage.file.endswith(".txnindex") for damage in all_damages)
    for damage in all_damages[:: max(1, len(all_damages) // 60)]:
        folder = tmp_path / "copy"
        shutil.copytree(original, folder)
        damage.apply(folder)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            check(damage, folder, expected)
        if damage.file.endswith(".txnindex") and "stopped" in str(original) and damage.topic == "txn":
            assert any("transaction index" in message for message in caplog.messages), damage
        shutil.rmtree(folder)
