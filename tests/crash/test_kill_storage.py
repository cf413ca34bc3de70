"""kill -9 at the steps by which a log's files change: rolls, snapshots, checkpoints, fsyncs and the cleaner's swap.

`ONCELOG_CRASH_KILLS` (see `make test-crash`) kills more often, and at later hits of each failpoint.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from oncelog.testing import BrokerProcess
from peers.kafka.dump import check_data_dir
from peers.kafka.jars import kafka_available
from tests.crash.load import (
    PARTITIONS,
    IdempotentLoad,
    TransactionalLoad,
    check_idempotent,
    check_transactional,
    read,
)
from tests.crash.test_kill import Killer

pytestmark = pytest.mark.crash

KILLS = int(os.environ.get("ONCELOG_CRASH_KILLS", "0"))
KEYS = 7
SETTINGS: dict[str, object] = {
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "log.cleaner.backoff.ms": 50,
    "log.retention.check.interval.ms": 100,
    "log.segment.delete.delay.ms": 100,
}
SMALL = {"internal.segment.bytes": "4000", "index.interval.bytes": "200"}
COMPACTED = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100"}


class KeyedLoad:
    """Ever greater numbers under few keys; `acknowledged` has the last confirmed one, by partition and key."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.acknowledged: dict[int, dict[int, int]] = defaultdict(dict)
        self.failed: list[str] = []
        self._next = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 20,
                "message.timeout.ms": 60_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def send(self, count: int) -> None:
        for _ in range(count):
            number = self._next
            self._next += 1
            key = number // PARTITIONS % KEYS
            value = f"{key}:{number}"
            self._producer.produce(
                self.topic, value, key=str(key), partition=number % PARTITIONS, on_delivery=self._note
            )
            self._producer.poll(0)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        key, number = (message.value() or b"").decode().split(":")
        self.acknowledged[message.partition() or 0][int(key)] = int(number)

    def finish(self) -> None:
        assert self._producer.flush(60) == 0, "records were neither acknowledged nor refused"


def check_keyed(load: KeyedLoad, values: dict[int, list[str]]) -> None:
    assert load.failed == []
    for partition, newest in load.acknowledged.items():
        kept: dict[int, list[int]] = defaultdict(list)
        for value in values[partition]:
            key, number = value.split(":")
            kept[int(key)].append(int(number))
        for key, number in newest.items():
            assert kept[key] == sorted(set(kept[key])), "order was not kept, or records were doubled"
            assert kept[key][-1] >= number, "the newest record of a key was lost"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", SETTINGS).start()
    yield process
    process.stop()


def create(broker: BrokerProcess, topic: str, config: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(10)


def points(short: list[str], long: dict[str, int]) -> list[str]:
    """A few failpoints, or all of them at their first hits."""
    if not KILLS:
        return short
    return [f"{point}@{count}" for point, last in long.items() for count in range(1, last + 1)]


LOG_POINTS = points(
    [
        "log.append.after_write@30",
        "log.roll.before_create@4",
        "log.snapshot.after_write@5",
        "log.flush.before_fsync@2",
        "checkpoint.before_rename@9",
    ],
    {
        "log.append.after_write": 20,
        "log.append.after_indexes": 20,
        "log.roll.before": 5,
        "log.roll.before_snapshot": 5,
        "log.roll.before_create": 5,
        "log.roll.after": 5,
        "segment.create.after_log_file": 8,
        "log.snapshot.before_write": 5,
        "log.snapshot.after_write": 5,
        "log.flush.before_fsync": 4,
        "log.flush.after_fsync": 4,
        "checkpoint.before_fsync": 12,
        "checkpoint.before_rename": 12,
        "checkpoint.after_rename": 12,
    },
)
CLEANER_POINTS = points(
    [
        "cleaner.before_fsync@1",
        "cleaner.swap.before_rename@3",
        "cleaner.swap.before_rename@6",
        "segment.delete.before_rename@2",
    ],
    {
        "cleaner.before_fsync": 3,
        "cleaner.swap.before_rename": 14,
        "segment.delete.before_rename": 14,
        "cleaner.swap.after": 3,
        "checkpoint.cleaner-offset-checkpoint": 3,
    },
)


def run_until_killed(broker: BrokerProcess, failpoint: str, load: IdempotentLoad | KeyedLoad) -> None:
    broker.stop()
    broker.start(extra_arguments=["--failpoint", failpoint])
    reviver = threading.Thread(target=_revive, args=(broker,))
    reviver.start()
    deadline_s = time.monotonic() + 30
    while reviver.is_alive() and time.monotonic() < deadline_s:
        load.send(60)
        time.sleep(0.01)
    assert not reviver.is_alive(), f"the broker never came to {failpoint}"
    load.send(60)
    load.finish()


def _revive(broker: BrokerProcess) -> None:
    assert broker.wait(60) == -9
    broker.start()


@pytest.mark.parametrize("failpoint", LOG_POINTS)
def test_kill_at_a_step_of_a_log(broker: BrokerProcess, failpoint: str) -> None:
    create(broker, "numbers", SMALL)
    load = IdempotentLoad(broker.bootstrap_servers, "numbers")
    run_until_killed(broker, failpoint, load)
    check_idempotent(load, read(broker.bootstrap_servers, "numbers"))


@pytest.mark.parametrize("failpoint", CLEANER_POINTS)
def test_kill_at_a_step_of_the_cleaner(broker: BrokerProcess, failpoint: str) -> None:
    create(broker, "newest", COMPACTED)
    load = KeyedLoad(broker.bootstrap_servers, "newest")
    run_until_killed(broker, failpoint, load)
    check_keyed(load, read(broker.bootstrap_servers, "newest"))


def test_kill_under_load_while_logs_are_cleaned(broker: BrokerProcess) -> None:
    create(broker, "newest", COMPACTED)
    create(broker, "ledger", COMPACTED)
    load = KeyedLoad(broker.bootstrap_servers, "newest")
    killer = Killer(broker, kills=KILLS // 3 or 4, seed=3)
    killer.start()
    while killer.is_alive():
        load.send(100)
        time.sleep(0.02)
    killer.finish()
    load.finish()
    check_keyed(load, read(broker.bootstrap_servers, "newest"))
    broker.stop()
    if kafka_available() is None:
        assert check_data_dir(broker.data_dir, compacted_topics=["newest"]) == []
    assert (broker.data_dir / "cleaner-offset-checkpoint").exists()


def test_kill_with_fsync_before_every_acknowledgement(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", {**SETTINGS, "oncelog.acks.fsync": "true"}).start()
    try:
        create(broker, "ledger", SMALL)
        load = TransactionalLoad(broker.bootstrap_servers, "ledger", "tx")
        killer = Killer(broker, kills=KILLS // 3 or 3, seed=5)
        killer.start()
        while killer.is_alive():
            load.run(3)
        killer.finish()
        load.run(3)
        check_transactional(load, read(broker.bootstrap_servers, "ledger"))
    finally:
        broker.stop()


def test_kill_under_load_of_a_broker_that_rolls_and_checkpoints_all_the_time(broker: BrokerProcess) -> None:
    create(broker, "numbers", SMALL)
    load = IdempotentLoad(broker.bootstrap_servers, "numbers")
    killer = Killer(broker, kills=KILLS // 3 or 3, seed=4)
    killer.start()
    while killer.is_alive():
        load.send(150)
        time.sleep(0.02)
    killer.finish()
    load.finish()
    check_idempotent(load, read(broker.bootstrap_servers, "numbers"))
