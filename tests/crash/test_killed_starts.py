"""A start that is killed at any point of its writes, while it takes a folder over or makes up for a loss: the next one
finds all that was there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.cluster.node_facts import JOURNAL_FILE
from oncelog.core import failpoints
from oncelog.core.config_resources import ResourceType
from tests.data import journal
from tests.simulation.conftest import memory  # noqa: F401  a fixture
from tests.unit.server.harness import BrokerInProcess

pytestmark = pytest.mark.crash

POINTS = [
    "checkpoint.before_fsync",
    "checkpoint.before_rename",
    "checkpoint.after_rename",
    "log.append.before_write",
    "log.append.after_write",
    "log.append.after_indexes",
    "log.flush.before_fsync",
    "log.flush.after_fsync",
    "log.truncate.before",
    "segment.create.after_log_file",
    "segment.delete.before_rename",
]
HITS_MAX = 20


class Killed(BaseException):
    pass


def of_a_node(folder: Path, *, clean: bool) -> Path:
    """As the folders with a journal: see their README."""
    node = BrokerInProcess(folder, journal.SETTINGS)
    node.create("t", 2)
    assert node.produce("t", [b"one"], partition=1).base_offset == 0
    node.configure(ResourceType.BROKER, "1", {"log.retention.ms": "-1"})
    node.configure(ResourceType.TOPIC, "t", {"retention.ms": "-1"})
    node.stop(clean=clean)
    return folder


def without_facts(folder: Path) -> Path:
    (of_a_node(folder, clean=True) / JOURNAL_FILE).unlink()
    return folder


def with_a_torn_end(folder: Path) -> Path:
    """Of the last batch, which says that the broker has stopped."""
    path = max((of_a_node(folder, clean=True) / "__cluster_metadata-0").glob("*.log"))
    path.write_bytes(path.read_bytes()[:-30])
    return folder


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "journal, stopped": lambda folder: journal.unpack("stopped", folder),
    "journal, killed": lambda folder: journal.unpack("killed", folder),
    "killed": lambda folder: of_a_node(folder, clean=False),
    "without facts": without_facts,
    "with a torn end": with_a_torn_end,
}


def start(folder: Path, seed: int) -> BrokerInProcess:
    """Each with a seed of its own: ids of topics are random."""
    return BrokerInProcess(folder, journal.SETTINGS, seed=seed)


def check(folder: Path) -> None:
    node = start(folder, seed=3)
    for offset in (1, 2):
        topic = node.broker.metadata.topics["t"]
        assert (topic.partition_count, topic.configs) == (2, {"retention.ms": "-1"})
        assert node.broker.settings.integer("log.retention.ms") == -1
        answer = node.produce("t", [b"more"], partition=1)
        assert (answer.error_code, answer.base_offset) == (0, offset)
        node.restart(clean=False)
    node.stop()


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_next_start_finds_all_that_was_there(memory: Path, kind: str) -> None:  # noqa: F811
    original = FOLDERS[kind](memory / "original")
    killed_at: set[str] = set()
    for point in POINTS:
        for hit in range(1, HITS_MAX):
            folder, left = memory / f"{point}-{hit}", memory / f"{point}-{hit}-left"
            shutil.copytree(original, folder)
            failpoints.arm(point, failpoints.on_nth_hit(hit, _kill))
            try:
                start(folder, seed=2).broker.stop(clean=False)
            except Killed:
                killed_at.add(point)
            else:
                break
            finally:
                failpoints.disarm_all()
            # What a killed process leaves is its files, without its lock.
            shutil.copytree(folder, left)
            check(left)
            shutil.rmtree(folder)
            shutil.rmtree(left)
    assert {"checkpoint.before_rename", "log.append.after_write", "log.flush.before_fsync"} <= killed_at


def _kill() -> None:
    raise Killed
