"""Every file of a data folder cut, flipped or removed: the broker starts, says what it found, and keeps the rest."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from oncelog.cluster.journal import JournalDamaged
from oncelog.core.errors import KafkaError
from oncelog.storage.log import Log, Origin
from oncelog.storage.log_dir import LogDirError
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_cleaning import commit, committed
from tests.unit.storage.cleaner_harness import keyed, read_committed
from tests.unit.storage.log_harness import append_txn, end_txn

SETTINGS = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
SMALL = {"internal_segment_bytes": "500", "index_interval_bytes": "60"}
TOPICS = ("plain", "txn", "compacted")
GROUPS = {"g1": 11, "g2": 22, "g3": 33}
JOURNAL = "oncelog-metadata.journal"
DAMAGES_PER_FILE = 5

Records = dict[int, tuple[bytes | None, bytes | None]]


class Damage(NamedTuple):
    file: str
    what: str
    position: int = 0

    def apply(self, folder: Path) -> None:
        path = folder / self.file
        if self.what == "missing":
            path.unlink()
            return
        data = bytearray(path.read_bytes())
        if self.what == "cut":
            del data[self.position :]
        else:
            data[self.position] ^= 1 << self.position % 8
        path.write_bytes(data)

    @property
    def topic(self) -> str:
        return self.file.partition("/")[0].rpartition("-")[0] if "/" in self.file else ""


def fill(node: BrokerInProcess) -> None:
    """Plain, transactional and compacted records over several segments, and committed offsets."""
    for topic in TOPICS:
        node.create(topic, cleanup_policy="compact" if topic == "compacted" else "delete", **SMALL)
    node.create("t", 2)
    now_ms = node.clock.now_ms()
    for number in range(24):
        for topic in ("plain", "compacted"):
            data = keyed((f"k{number % 5}", f"value-{number}"), timestamp=now_ms + number)
            node.broker.partitions.get(topic, 0).append_as_leader(data, now_ms=now_ms, origin=Origin.COORDINATOR)
        partition = node.broker.partitions.get("txn", 0)
        append_txn(partition.log, 5 + number % 2, number // 2)
        if number % 4 == 3:
            end_txn(partition.log, 5, commit=True)
            end_txn(partition.log, 6, commit=False)
        partition.advance_high_watermark(partition.log.log_end_offset)
    for group, offset in GROUPS.items():
        commit(node, group, 0, offset)
    # The last line of the journal is then of no consequence.
    node.broker.metadata.next_producer_id()


@pytest.fixture(scope="module", params=["stopped", "killed", "killed after a checkpoint"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("damaged")
    node = BrokerInProcess(root / "data", SETTINGS)
    fill(node)
    if request.param == "killed after a checkpoint":
        node.broker.log_dir.checkpoint(node.broker.high_watermarks())
        for number in range(24, 28):
            data = keyed((f"k{number % 5}", f"value-{number}"))
            node.broker.partitions.get("plain", 0).append_as_leader(data, now_ms=0, origin=Origin.COORDINATOR)
    node.broker.stop(clean=request.param == "stopped")
    return root / "data"


def shown(node: BrokerInProcess) -> dict[str, Records]:
    return {topic: read_committed(node.broker.partitions.get(topic, 0).log) for topic in TOPICS}


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


def test_no_damage_to_one_file_costs_more_than_what_was_in_it(
    original: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(original, whole)
    node = BrokerInProcess(whole, SETTINGS)
    expected = shown(node)
    node.broker.stop(clean=False)
    all_damages = list(damages(original))
    assert {Path(damage.file).suffix for damage in all_damages} >= {".log", ".index", ".timeindex", ".txnindex"}
    for damage in all_damages[:: max(1, len(all_damages) // 150)]:
        folder = tmp_path / "copy"
        shutil.copytree(original, folder)
        damage.apply(folder)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            check(damage, folder, expected)
        shutil.rmtree(folder)


def check(damage: Damage, folder: Path, expected: dict[str, Records]) -> None:
    try:
        node = BrokerInProcess(folder, SETTINGS)
    except (JournalDamaged, LogDirError):
        # Not ours to guess: which topics there are, and whose folder this is.
        assert damage.file in (JOURNAL, "meta.properties"), damage
        return
    try:
        for topic in TOPICS:
            if damage.file == JOURNAL and topic not in node.broker.metadata.topics:
                assert list(folder.glob(f"{topic}-0.*-stray")), damage
                return
            log = node.broker.partitions.get(topic, 0).log
            if damage.topic == topic and damage.file.endswith(".log"):
                _check_what_is_left(damage, log, expected[topic])
            else:
                assert read_committed(log) == expected[topic], damage
        if not damage.topic.startswith("__") and damage.file != JOURNAL:
            assert {group: committed(node, group)[0] for group in GROUPS} == GROUPS, damage
        # And it can be written to.
        assert node.produce("plain", [b"after"]).error_code == 0, damage
    finally:
        node.broker.stop(clean=False)


def _check_what_is_left(damage: Damage, log: Log, expected: Records) -> None:
    """Segments before the damaged one are whole. Nothing is found that was not written.

    Damage to what a clean stop or a checkpoint vouches for is not looked for, except at the end: readers meet it.
    """
    base_offset = int(Path(damage.file).stem)
    try:
        found = read_committed(log)
    except KafkaError:
        end_offset, log.log_end_offset = log.log_end_offset, base_offset
        found = read_committed(log)
        log.log_end_offset = end_offset
    before = {offset: record for offset, record in found.items() if offset < base_offset}
    wanted = {offset: record for offset, record in expected.items() if offset < base_offset}
    if log.topic_partition.topic != "txn":
        assert before == wanted, damage
        assert damage.what == "flip" or found.items() <= expected.items(), damage
    elif damage.what != "missing":
        # With its marker, a transaction may have lost its end: it is open again then, and nothing of it is shown.
        assert before.items() <= wanted.items(), damage
