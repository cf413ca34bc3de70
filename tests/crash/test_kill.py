"""kill -9 under load: nothing acknowledged is lost or doubled, order is kept, transactions are whole."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from oncelog.testing import BrokerProcess
from tests.crash.load import (
    PARTITIONS,
    IdempotentLoad,
    TransactionalLoad,
    check_idempotent,
    check_transactional,
    read,
)

pytestmark = pytest.mark.crash

SETTINGS = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}
SMALL_SEGMENTS = {"internal.segment.bytes": "20000"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", SETTINGS).start()
    yield process
    process.stop()


def create(broker: BrokerProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=SMALL_SEGMENTS)])[topic].result(10)


class Killer(threading.Thread):
    """Kills the broker at random moments and starts it again, until told to stop."""

    def __init__(self, broker: BrokerProcess, kills: int, seed: int) -> None:
        super().__init__()
        self._broker = broker
        self._kills = kills
        self._random = random.Random(seed)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(self._kills):
                time.sleep(self._random.uniform(0.1, 0.6))
                self._broker.kill()
                self._broker.start()
        except BaseException as error:  # noqa: BLE001  it is raised again in the test
            self.error = error

    def finish(self) -> None:
        self.join()
        if self.error is not None:
            raise self.error


def test_kill_under_idempotent_load(broker: BrokerProcess) -> None:
    create(broker, "numbers")
    load = IdempotentLoad(broker.bootstrap_servers, "numbers")
    killer = Killer(broker, kills=4, seed=1)
    killer.start()
    while killer.is_alive():
        load.send(200)
        time.sleep(0.01)
    killer.finish()
    load.finish()
    check_idempotent(load, read(broker.bootstrap_servers, "numbers"))
    assert sum(map(len, load.acknowledged.values())) > 500


@pytest.mark.parametrize("version", [0, 2])
def test_kill_under_transactional_load(tmp_path: Path, version: int) -> None:
    broker = BrokerProcess(tmp_path / "data", {**SETTINGS, "transaction.version": version}).start()
    try:
        create(broker, "ledger")
        load = TransactionalLoad(broker.bootstrap_servers, "ledger", "tx")
        killer = Killer(broker, kills=4, seed=version)
        killer.start()
        while killer.is_alive():
            load.run(5)
        killer.finish()
        load.run(5)
        check_transactional(load, read(broker.bootstrap_servers, "ledger"))
    finally:
        broker.stop()


TXN_FAILPOINTS = [
    *(
        f"txn.record.{where}@{count}"
        for where in ("before_append", "after_append", "after_apply")
        for count in (1, 2, 3, 5)
    ),
    *(f"txn.marker.before_write@{count}" for count in (1, 2, 3)),
    "log.append.before_write@9",
    "log.append.after_write@9",
    "log.append.after_write@12",
]


@pytest.mark.parametrize("failpoint", TXN_FAILPOINTS)
def test_kill_at_a_step_of_a_transaction(tmp_path: Path, failpoint: str) -> None:
    """The same producer goes on with the restarted broker: an open transaction is still open, a decided one ends."""
    broker = BrokerProcess(tmp_path / "data", SETTINGS).start()
    try:
        create(broker, "ledger")
        broker.stop()
        broker.start(extra_arguments=["--failpoint", failpoint])
        reviver = threading.Thread(target=_revive, args=(broker,))
        reviver.start()
        load = TransactionalLoad(broker.bootstrap_servers, "ledger", "tx")
        load.run(9)
        reviver.join(60)
        assert not reviver.is_alive(), f"the broker never came to {failpoint}"
        check_transactional(load, read(broker.bootstrap_servers, "ledger"))
    finally:
        broker.stop()


def _revive(broker: BrokerProcess) -> None:
    assert broker.wait(60) == -9
    broker.start()


@pytest.mark.parametrize("failpoint", ["journal.append.before_write@2", "journal.append.after_write@2"])
def test_kill_while_a_topic_is_created(tmp_path: Path, failpoint: str) -> None:
    broker = BrokerProcess(tmp_path / "data", SETTINGS)
    broker.start(extra_arguments=["--failpoint", failpoint])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    created = admin.create_topics([NewTopic("numbers", PARTITIONS, 1)], request_timeout=2)["numbers"]
    assert broker.wait(20) == -9
    broker.start()
    try:
        assert created.exception(20) is not None
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        found = admin.list_topics(timeout=10).topics.get("numbers")
        assert found is None or len(found.partitions) == PARTITIONS
        if found is None:
            create(broker, "numbers")
        load = IdempotentLoad(broker.bootstrap_servers, "numbers")
        load.send(100)
        load.finish()
        check_idempotent(load, read(broker.bootstrap_servers, "numbers"))
    finally:
        broker.stop()
