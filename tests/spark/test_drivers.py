"""Several drivers of one pipeline, as processes: stopped, doubled and killed ones."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.spark import sink
from tests.spark.kafka import Kafka
from tests.spark.test_cluster import run_driver, start_driver
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

PATIENCE_S = 900
"""A driver starts a JVM, which takes minutes on a busy machine."""


class Drivers:
    """Of one pipeline from a topic of two partitions to another. Those that still run when the test ends are killed."""

    def __init__(self, kafka: Kafka, name: Callable[[str], str], folder: Path) -> None:
        self.kafka = kafka
        self.source, self.target = kafka.create(name("in"), 2), kafka.create(name("out"), 2)
        self.order: dict[str, Any] = {
            "master": "local[2]",
            "servers": kafka.servers,
            "source": self.source,
            "target": self.target,
            "id": name("id"),
            "checkpoint": str(folder / "checkpoint"),
            "options": {"maxOffsetsPerTrigger": "40"},
        }
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, log: str, **more: Any) -> subprocess.Popen[bytes]:
        process = start_driver(self._folder / log, **{**self.order, **more})
        self._started.append(process)
        return process

    def said(self, log: str) -> str:
        return (self._folder / log).read_text(errors="replace")

    def kill_all(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait(60)

    def send(self, first: int, count: int) -> list[bytes]:
        values = [b"%05d" % number for number in range(first, first + count)]
        self.kafka.send(self.source, [(value, value) for value in values])
        return values

    def check(self, records: list[bytes]) -> None:
        """Every record once, and the group at the end of the input."""
        assert self.kafka.values(self.target) == sorted(records)
        ends = [sum(1 for seen in self.kafka.read(self.source) if seen.partition == p) for p in range(2)]
        assert self.kafka.group_offsets(self.order.get("group", self.order["id"]), self.source, 2) == ends


@pytest.fixture
def drivers(kafka: Kafka, name: Callable[[str], str], tmp_path: Path) -> Iterator[Drivers]:
    made = Drivers(kafka, name, tmp_path)
    yield made
    made.kill_all()


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the driver has ended"
    state = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state == "T"


@pytest.mark.parametrize("point", ["before_write", "before_commit"])
def test_a_zombie_driver_that_slept_through_its_successors_whole_life_writes_nothing(
    drivers: Drivers, point: str
) -> None:
    records = drivers.send(0, 120)
    zombie = drivers.start("zombie", stop_at=point)
    wait_until(lambda: is_stopped(zombie), timeout_s=PATIENCE_S)
    assert run_driver(**drivers.order) == 0
    drivers.check(records)
    os.kill(zombie.pid, signal.SIGCONT)
    assert zombie.wait(PATIENCE_S) not in (0, -signal.SIGKILL)
    assert f"another driver has taken over transactional id {drivers.order['id']}" in drivers.said("zombie")
    drivers.check(records)


@pytest.mark.parametrize(("point", "renamed"), [("before_commit", False), ("after_last_look", True)])
def test_of_two_drivers_at_work_on_one_checkpoint_the_older_is_fenced(
    drivers: Drivers, tmp_path: Path, point: str, renamed: bool
) -> None:
    """As when a scheduler starts a pipeline a second time, perhaps with another transactional id. The first is in the
    middle of a batch, where Spark has nothing to notice it by, and comes back while the second is at work."""
    always = {"trigger": {"processingTime": "0 seconds"}}
    records = drivers.send(0, 80)
    first_id = drivers.order["group"] = drivers.order["id"]
    first = drivers.start("first", **always, hold_at=point, hold_mark=str(tmp_path / "hold"))
    held, go_on = tmp_path / "hold-held", tmp_path / "hold-go-on"
    wait_until(lambda: first.poll() is None and held.exists(), timeout_s=PATIENCE_S)
    of_first = drivers.kafka.invisible(drivers.target)
    assert len(of_first) == 40
    if renamed:
        drivers.order["id"] += "-renamed"
    second = drivers.start("second", **always)

    def second_has_written() -> bool:
        assert second.poll() is None, drivers.said("second")[-4000:]
        return drivers.kafka.values(drivers.target) == sorted(records)

    wait_until(second_has_written, timeout_s=PATIENCE_S)
    assert first.poll() is None
    records += drivers.send(len(records), 40)
    go_on.touch()
    assert first.wait(PATIENCE_S) == 1
    said = drivers.said("first")
    assert f"another driver has taken over transactional id {first_id}" in said
    # It is neither Spark nor the group's offsets that stop it.
    for other in ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming", "somebody else has committed"):
        assert other not in said
    wait_until(second_has_written, timeout_s=PATIENCE_S)
    records += drivers.send(len(records), 5)
    wait_until(second_has_written, timeout_s=PATIENCE_S)
    drivers.kill_all()
    drivers.order["options"] = {}
    assert run_driver(**drivers.order) == 0
    drivers.check(records)
    assert of_first <= drivers.kafka.invisible(drivers.target)


STEPS = ("before_write", "before_offsets", "after_last_look", "before_commit", "after_commit")
DRIVERS = len(STEPS)
DIGIT = 1000
"""More than the records of any key: a sum tells how many of them each driver has counted."""


def counted_by_each(total: int) -> list[int]:
    return [total // DIGIT**driver % DIGIT for driver in range(DRIVERS)]


def test_drivers_are_killed_at_each_step_there_is() -> None:
    found = re.findall(r'failpoints\.hit\("spark\.sink\.(\w+)"\)', Path(sink.__file__).read_text())
    assert tuple(found) == STEPS


def test_state_and_output_agree_after_a_driver_was_killed_at_each_step(drivers: Drivers, spark: Any) -> None:
    """A batch that was not committed gives another result when it is run again, so that state which the killed driver
    has left is not taken for that of the batch."""
    words = [b"a", b"b", b"a", b"c", b"a", b"b", b"d"] * 60
    drivers.kafka.send(drivers.source, [(word, b"") for word in words])
    for driver, point in enumerate(STEPS):
        drivers.order["counts"] = DIGIT**driver
        assert run_driver(**drivers.order, die_at=point) == -signal.SIGKILL
    # What was committed and not noted must give the same again.
    assert run_driver(**drivers.order) == 0
    written: dict[bytes, list[list[int]]] = defaultdict(lambda: [[0] * DRIVERS])
    for seen in drivers.kafka.read(drivers.target):
        written[seen.key or b""].append(counted_by_each(int(seen.value or b"")))
    for sums in written.values():
        for before, after in itertools.pairwise(sums):
            assert all(old <= new for old, new in zip(before, after, strict=True)), "it was said otherwise before"
    last = {key: sums[-1] for key, sums in written.items()}
    assert {key: sum(counted) for key, counted in last.items()} == Counter(words)
    assert all(map(any, zip(*last.values(), strict=True))), "each driver has counted some"
    rows = spark.read.format("statestore").load(drivers.order["checkpoint"]).collect()
    assert {bytes(row.key[0]): counted_by_each(int(row.value[0])) for row in rows} == last
