"""Files of a stopped or killed broker damaged one by one: it starts, says what it repaired, and shows the same records.

What the unit tests leave out is here: transaction indexes, and the files by which damage to others is noticed.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from oncelog.storage.checkpoints import SUMS
from oncelog.storage.segment_notes import FILE_NAME as NOTES
from tests.unit.server.damaged_folder import SETTINGS, check, fill, shown
from tests.unit.server.harness import BrokerInProcess
from tests.unit.storage.damage import Damage, damaged_copies

pytestmark = pytest.mark.crash

DAMAGES_PER_FILE = 6


class Original(NamedTuple):
    folder: Path
    was_stopped: bool


@pytest.fixture(params=["stopped", "killed", "killed after a checkpoint"])
def original(request: pytest.FixtureRequest, tmp_path: Path) -> Original:
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    fill(node)
    if request.param == "killed after a checkpoint":
        node.broker.log_dir.checkpoint(node.broker.upkeep.high_watermarks())
    was_stopped = request.param == "stopped"
    node.broker.stop(clean=was_stopped)
    return Original(tmp_path / "data", was_stopped)


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
    original: Original, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = shown(original.folder, tmp_path)
    all_damages = list(damages(original.folder))
    assert any(damage.file.endswith(".txnindex") for damage in all_damages)
    some = all_damages[:: max(1, len(all_damages) // 60)]
    for damage, folder in damaged_copies(original.folder, some, tmp_path):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            check(damage, folder, expected)
        if damage.file.endswith(".txnindex") and original.was_stopped and damage.topic == "txn":
            assert any("transaction index" in message for message in caplog.messages), damage
