"""Every file of a data folder cut, flipped or removed: the broker starts, says what it found, and keeps the rest."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.storage.log import Origin
from tests.unit.server.damaged_folder import SETTINGS, check, fill, shown
from tests.unit.server.harness import BrokerInProcess
from tests.unit.storage.cleaner_harness import keyed
from tests.unit.storage.damage import Damage, damaged_copies

DAMAGES_PER_FILE = 5


@pytest.fixture(scope="module", params=["stopped", "killed", "killed after a checkpoint"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("damaged")
    node = BrokerInProcess(root / "data", SETTINGS)
    fill(node)
    if request.param == "killed after a checkpoint":
        node.broker.log_dir.checkpoint(node.broker.upkeep.high_watermarks())
        for number in range(24, 28):
            data = keyed((f"k{number % 5}", f"value-{number}"))
            node.broker.partitions.get("plain", 0).append_as_leader(data, now_ms=0, origin=Origin.COORDINATOR)
    node.broker.stop(clean=request.param == "stopped")
    return root / "data"


TOPIC_ID_CHARACTERS = 22


def damages(folder: Path) -> Iterator[Damage]:
    """All kinds for every file; of positions, those of the last entry and a few others."""
    chosen = random.Random(7)
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"):
        name, size = str(path.relative_to(folder)), path.stat().st_size
        if path.suffix == ".txnindex":
            # It has no checksum, and most segments have none: only a recovery notices one that is missing or wrong.
            yield Damage(name, "cut", 0)
            yield Damage(name, "cut", size - 1)
            continue
        yield Damage(name, "missing")
        if size:
            tail = range(max(0, size - 100), size)
            for _ in range(DAMAGES_PER_FILE):
                yield Damage(name, "cut", chosen.choice(tail))
                yield Damage(name, "flip", chosen.choice([chosen.choice(tail), chosen.randrange(size)]))


def test_no_damage_to_one_file_costs_more_than_what_was_in_it(original: Path, tmp_path: Path) -> None:
    expected = shown(original, tmp_path)
    all_damages = list(damages(original))
    assert {Path(damage.file).suffix for damage in all_damages} >= {".log", ".index", ".timeindex", ".txnindex"}
    some = all_damages[:: max(1, len(all_damages) // 150)]
    for damage, folder in damaged_copies(original, some, tmp_path):
        check(damage, folder, expected)


def test_no_changed_byte_in_the_id_of_a_topic_has_its_log_taken_for_that_of_another(
    original: Path, tmp_path: Path
) -> None:
    expected = shown(original, tmp_path)
    chosen = random.Random(3)
    files = [path for name in ("plain", "__consumer_offsets") for path in original.glob(f"{name}-*/partition.metadata")]
    assert len(files) > 1
    all_damages = [
        Damage(str(path.relative_to(original)), "flip", position, chosen.randrange(8))
        for path in files
        for position in chosen.sample(range(path.stat().st_size - TOPIC_ID_CHARACTERS, path.stat().st_size), 4)
    ]
    for damage, folder in damaged_copies(original, all_damages, tmp_path):
        check(damage, folder, expected)
        assert not list(folder.glob("*-stray")), damage
