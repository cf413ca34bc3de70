"""kill -9 at every failpoint there is in the broker, and at later hits of it in the long form (see `scale`).

Each scenario keeps its broker, its folder and its clients while one failpoint after the other kills the broker. At the
end an independent reader, and Apache Kafka's own, look at what is left.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

import oncelog
from oncelog.client import Admin
from oncelog.client.errors import TimedOut
from oncelog.core.ids import TopicPartition
from oncelog.storage import checkpoints
from oncelog.testing import BrokerProcess
from tests.crash.files import stop_and_check_files
from tests.crash.killer import COMPACTED, RETAINED, SMALL, create, start_with_failpoint, work_until_killed
from tests.crash.load import (
    PARTITIONS,
    IdempotentLoad,
    KeyedLoad,
    TransactionalLoad,
    check_idempotent,
    check_keyed,
    check_retained,
    check_transactional,
    read,
    read_retained,
)
from tests.crash.scale import ROUNDS, TIMEOUT_S

pytestmark = [pytest.mark.crash, pytest.mark.timeout(TIMEOUT_S)]

# By scenario: the failpoints it comes to, and how many hits of each are soon reached.

APPENDING = {
    "log.append.before_write": 40,
    "log.append.after_write": 40,
    "log.append.after_indexes": 40,
    "log.roll.before": 6,
    "log.roll.before_snapshot": 6,
    "log.roll.before_create": 6,
    "log.roll.after": 6,
    "segment.create.after_log_file": 8,
    "log.snapshot.before_write": 6,
    "log.snapshot.after_write": 6,
    "log.flush.before_fsync": 6,
    "log.flush.after_fsync": 6,
    "checkpoint.before_fsync": 16,
    "checkpoint.before_rename": 16,
    "checkpoint.after_rename": 16,
    f"checkpoint.{checkpoints.SUMS}": 4,
    f"checkpoint.{checkpoints.RECOVERY_POINTS}": 4,
    f"checkpoint.{checkpoints.HIGH_WATERMARKS}": 4,
    f"checkpoint.{checkpoints.LOG_START_OFFSETS}": 4,
}
TRANSACTIONS = {
    "txn.record.before_append": 12,
    "txn.record.after_append": 12,
    "txn.record.after_apply": 12,
    "txn.marker.before_write": 12,
    "log.append.before_txn_index": 5,
    "txn_index.append.before_write": 5,
}
COMMITTING_OFFSETS = {"group.record.before_append": 12, "group.record.after_append": 12, "group.record.after_apply": 12}
CLEANING = {
    "cleaner.before_fsync": 3,
    "cleaner.swap.before_rename": 14,
    "segment.delete.before_rename": 14,
    "cleaner.swap.after": 3,
    f"checkpoint.{checkpoints.CLEANER_OFFSETS}": 3,
}
RETENTION = {"log.delete.before_rename": 8, "segment.delete.before_rename": 14}
STOPPING = {
    "log_dir.close.before_marker": 1,
    "log.snapshot.before_write": 3,
    "log.flush.before_fsync": 3,
    f"checkpoint.{checkpoints.RECOVERY_POINTS}": 1,
}
"""None of them is met before the stop by a broker that has time, unless it is by its metadata log."""
CHANGING_TOPICS = {
    "log.append.before_write": 9,
    "log.append.after_write": 9,
    "log.flush.before_fsync": 9,
    "log.flush.after_fsync": 9,
}

DAY_MS = 86_400_000

ELSEWHERE = {"log.truncate.before": "tests/unit/storage/test_log_truncation.py"}
"""Failpoints that no request leads a single broker to, and where they are tested."""

_HIT = re.compile(r"\bhit\(\s*(f?)\"([^\"]+)\"\s*\)")
_HIT_OF_A_COORDINATOR = re.compile(r"f\"\{failpoints\}([^\"]+)\"")
_COORDINATOR = re.compile(r"\bfailpoints=\"(\w+)\"")


def failpoints_in_the_source() -> set[str]:
    source = Path(oncelog.__file__).parent
    names = failpoints_of_coordinators(source / "server")
    for path in source.rglob("*.py"):
        for is_pattern, name in _HIT.findall(path.read_text()):
            if path.name == "failpoints.py" or path.parent.name in ("spark", "connect"):
                # Those of the Spark sink and of connectors kill a job, not a broker.
                continue
            if is_pattern:
                prefix = name.partition("{")[0]
                assert prefix == "checkpoint.", f"{path} has failpoints {name} that this test cannot list"
                names |= {f"{prefix}{value}" for value in CHECKPOINTS}
            else:
                names.add(name)
    return names


def failpoints_of_coordinators(source: Path) -> set[str]:
    runtime = (source / "coordinator_runtime.py").read_text()
    coordinators = [found for path in source.glob("*.py") for found in _COORDINATOR.findall(path.read_text())]
    return {name + step for name in coordinators for step in _HIT_OF_A_COORDINATOR.findall(runtime)}


CHECKPOINTS = (
    checkpoints.SUMS,
    checkpoints.RECOVERY_POINTS,
    checkpoints.HIGH_WATERMARKS,
    checkpoints.LOG_START_OFFSETS,
    checkpoints.CLEANER_OFFSETS,
)


def test_every_failpoint_has_a_crash_test() -> None:
    tested = {*APPENDING, *TRANSACTIONS, *COMMITTING_OFFSETS, *CLEANING, *RETENTION, *STOPPING, *CHANGING_TOPICS}
    assert tested | set(ELSEWHERE) == failpoints_in_the_source()
    for name, path in ELSEWHERE.items():
        assert name in Path(path).read_text(), f"{name} is not in {path}"


def test_every_failpoint_of_connectors_is_used_by_their_tests() -> None:
    source = Path(oncelog.__file__).parent / "connect"
    names = {name for path in source.glob("*.py") for _, name in _HIT.findall(path.read_text())}
    tests = "".join(path.read_text() for path in Path("tests/connect").glob("*.py"))
    assert names
    assert [name for name in sorted(names) if f'"{name}"' not in tests] == []


def kill_at_each(broker: BrokerProcess, points: dict[str, int], number: int, work: Callable[[], None]) -> None:
    """At another hit in each round. The first round has early hits, so that files are still few."""
    chosen = random.Random(f"{sorted(points)} {number}")
    for point, last_hit in points.items():
        hit = chosen.randint(1, last_hit if number else max(1, last_hit // 2))
        work_until_killed(broker, point, hit, work)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_kill_at_each_step_of_appending(busy_broker: BrokerProcess, number: int) -> None:
    create(busy_broker, "numbers", SMALL)
    load = IdempotentLoad(busy_broker.bootstrap_servers, "numbers")
    kill_at_each(busy_broker, APPENDING, number, lambda: load.send(40))
    load.finish()
    check_idempotent(load, read(busy_broker.bootstrap_servers, "numbers"))
    stop_and_check_files(busy_broker)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_kill_at_each_step_of_a_transaction(busy_broker: BrokerProcess, number: int) -> None:
    """The same producer goes on with the restarted broker: an open transaction is still open, a decided one ends."""
    create(busy_broker, "ledger", SMALL)
    load = TransactionalLoad(busy_broker.bootstrap_servers, "ledger", "tx")
    kill_at_each(busy_broker, TRANSACTIONS, number, lambda: load.run(1))
    load.run(3)
    check_transactional(load, read(busy_broker.bootstrap_servers, "ledger"))
    stop_and_check_files(busy_broker)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_kill_at_each_step_of_the_cleaner(busy_broker: BrokerProcess, number: int) -> None:
    create(busy_broker, "newest", COMPACTED)
    load = KeyedLoad(busy_broker.bootstrap_servers, "newest")
    kill_at_each(busy_broker, CLEANING, number, lambda: load.send(60))
    load.finish()
    check_keyed(load, read(busy_broker.bootstrap_servers, "newest"))
    stop_and_check_files(busy_broker, compacted_topics=["newest"])


@pytest.mark.parametrize("number", range(ROUNDS))
def test_kill_at_each_step_of_retention(busy_broker: BrokerProcess, number: int) -> None:
    create(busy_broker, "numbers", RETAINED)
    load = IdempotentLoad(busy_broker.bootstrap_servers, "numbers")
    kill_at_each(busy_broker, RETENTION, number, lambda: load.send(40))
    load.finish()
    check_retained(load, read_retained(busy_broker.bootstrap_servers, "numbers"))
    stop_and_check_files(busy_broker)
    for partition in range(PARTITIONS):
        files = (busy_broker.data_dir / f"numbers-{partition}").glob("*.log")
        assert sum(path.stat().st_size for path in files) >= int(RETAINED["retention.bytes"]), "too much was deleted"


def is_killed_in_its_stop(broker: BrokerProcess, failpoint: str, load: IdempotentLoad) -> bool:
    """False if it was killed earlier, by what its metadata log does. Then it is back."""
    if not start_with_failpoint(broker, failpoint):
        return False
    load.send(30)
    time.sleep(1)
    while broker.running and load.waits_for_answers():
        pass
    if not broker.running:
        broker.start()
        load.finish()
        return False
    assert broker.stop() == -9, f"the stop never came to {failpoint}"
    return True


@pytest.mark.parametrize("number", range(ROUNDS))
def test_kill_at_each_step_of_a_stop(broker: BrokerProcess, number: int) -> None:
    create(broker, "numbers")
    load = IdempotentLoad(broker.bootstrap_servers, "numbers")
    for point, last_hit in STOPPING.items():
        hit = 1 + number % last_hit
        while not is_killed_in_its_stop(broker, f"{point}@{hit}", load):
            hit += 1
        broker.start()
    load.send(30)
    load.finish()
    check_idempotent(load, read(broker.bootstrap_servers, "numbers"))
    stop_and_check_files(broker)


@dataclass
class TopicChanges:
    """Creates topics and changes settings; remembers what was confirmed."""

    broker: BrokerProcess
    created: list[str] = field(default_factory=list)
    retention_ms: dict[str, int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def __call__(self) -> None:
        number = next(self.numbers)
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers, "log_level": 0})
        name = f"topic-{number}"
        try:
            admin.create_topics([NewTopic(name, PARTITIONS, 1)], request_timeout=5)[name].result(60)
            self.created.append(name)
            for step in range(DAY_MS, DAY_MS + 120):
                # Before the answer either value may be there.
                self.retention_ms.pop(name, None)
                entry = ConfigEntry("retention.ms", str(step), incremental_operation=AlterConfigOpType.SET)
                resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
                admin.incremental_alter_configs([resource], request_timeout=5)[resource].result(60)
                self.retention_ms[name] = step
        except KafkaException as error:
            assert error.args[0].retriable() or error.args[0].code() < 0, error

    def check(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers, "log_level": 0})
        found = admin.list_topics(timeout=60).topics
        assert set(self.created) <= set(found)
        assert {len(topic.partitions) for name, topic in found.items() if name.startswith("topic-")} == {PARTITIONS}
        for name, expected in self.retention_ms.items():
            resource = ConfigResource(ResourceType.TOPIC, name)
            configs = admin.describe_configs([resource])[resource].result(60)
            assert configs["retention.ms"].value == str(expected), name


@dataclass
class OffsetCommits:
    """Commits one offset after the other for a group; remembers what was confirmed."""

    broker: BrokerProcess
    topic: str
    tried: int = 0
    confirmed: int = 0
    timeout_ms: int = 2_000

    def __call__(self) -> None:
        with self._admin() as admin:
            for _ in range(40):
                self.tried += 1
                try:
                    admin.alter_group_offsets("g", {TopicPartition(self.topic, 0): self.tried})
                except TimedOut:
                    return
                self.confirmed = self.tried

    def _admin(self) -> Admin:
        """Not librdkafka's, which aborts its process when a broker dies under alter_consumer_group_offsets."""
        return Admin({"bootstrap.servers": self.broker.bootstrap_servers, "default.api.timeout.ms": self.timeout_ms})

    def check(self) -> None:
        with self._admin() as admin:
            found = admin.group_offsets("g")[TopicPartition(self.topic, 0)].offset
        assert self.confirmed <= found <= self.tried


@pytest.mark.parametrize("number", range(ROUNDS))
def test_kill_at_each_step_of_a_commit_of_offsets(busy_broker: BrokerProcess, number: int) -> None:
    create(busy_broker, "numbers")
    commits = OffsetCommits(busy_broker, "numbers")
    kill_at_each(busy_broker, COMMITTING_OFFSETS, number, commits)
    commits.timeout_ms = 60_000  # nobody kills it any more
    commits.check()
    commits()
    commits.check()
    assert commits.confirmed == commits.tried
    stop_and_check_files(busy_broker)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_kill_at_each_step_of_the_metadata_log(busy_broker: BrokerProcess, number: int) -> None:
    changes = TopicChanges(busy_broker)
    kill_at_each(busy_broker, CHANGING_TOPICS, number, changes)
    changes.check()
    load = IdempotentLoad(busy_broker.bootstrap_servers, changes.created[-1])
    load.send(100)
    load.finish()
    check_idempotent(load, read(busy_broker.bootstrap_servers, changes.created[-1]))
    stop_and_check_files(busy_broker)
