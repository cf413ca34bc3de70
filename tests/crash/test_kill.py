"""kill -9 at random under load: nothing acknowledged is lost or doubled, order is kept, transactions are whole."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.testing import BrokerProcess
from tests.crash.files import check_files
from tests.crash.killer import BUSY_SETTINGS, COMPACTED, SETTINGS, SMALL, Killer, create
from tests.crash.load import (
    IdempotentLoad,
    KeyedLoad,
    TransactionalLoad,
    check_idempotent,
    check_keyed,
    check_transactional,
    read,
)
from tests.crash.scale import TIMEOUT_S, random_kills

pytestmark = [pytest.mark.crash, pytest.mark.timeout(TIMEOUT_S)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", SETTINGS).start()
    yield process
    process.stop()


@pytest.fixture
def busy_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", BUSY_SETTINGS).start()
    yield process
    process.stop()


def send_while_it_is_killed(broker: BrokerProcess, load: IdempotentLoad | KeyedLoad, kills: int, seed: int) -> None:
    killer = Killer(broker, kills=kills, seed=seed)
    killer.start()
    while killer.is_alive():
        load.send(100)
        time.sleep(0.02)
    killer.finish()
    load.finish()


def test_kill_under_idempotent_load(broker: BrokerProcess) -> None:
    create(broker, "numbers")
    load = IdempotentLoad(broker.bootstrap_servers, "numbers")
    send_while_it_is_killed(broker, load, random_kills(4), seed=1)
    check_idempotent(load, read(broker.bootstrap_servers, "numbers"))
    assert sum(map(len, load.acknowledged.values())) > 500
    broker.stop()
    check_files(broker.data_dir)


@pytest.mark.parametrize("version", [0, 2])
def test_kill_under_transactional_load(tmp_path: Path, version: int) -> None:
    broker = BrokerProcess(tmp_path / "data", {**SETTINGS, "transaction.version": version}).start()
    try:
        create(broker, "ledger")
        load = TransactionalLoad(broker.bootstrap_servers, "ledger", "tx")
        killer = Killer(broker, kills=random_kills(4), seed=version)
        killer.start()
        while killer.is_alive():
            load.run(5)
        killer.finish()
        load.run(5)
        check_transactional(load, read(broker.bootstrap_servers, "ledger"))
    finally:
        broker.stop()
    check_files(broker.data_dir)


def test_kill_under_both_loads_at_once(broker: BrokerProcess) -> None:
    """Plain and transactional records share partitions; two transactional producers take turns with one another."""
    create(broker, "mixed")
    plain = IdempotentLoad(broker.bootstrap_servers, "mixed")
    ledgers = [TransactionalLoad(broker.bootstrap_servers, "mixed", name) for name in ("a", "b")]
    killer = Killer(broker, kills=random_kills(3), seed=7)
    killer.start()
    while killer.is_alive():
        plain.send(30)
        for ledger in ledgers:
            ledger.run(1)
    killer.finish()
    plain.finish()
    values = read(broker.bootstrap_servers, "mixed")
    check_idempotent(plain, {partition: [v for v in kept if ":" not in v] for partition, kept in values.items()})
    for ledger in ledgers:
        mine = {p: [v for v in kept if v.startswith(ledger.transactional_id)] for p, kept in values.items()}
        check_transactional(ledger, mine)
    broker.stop()
    check_files(broker.data_dir)


def test_kill_of_a_broker_that_rolls_and_checkpoints_all_the_time(busy_broker: BrokerProcess) -> None:
    create(busy_broker, "numbers", SMALL)
    load = IdempotentLoad(busy_broker.bootstrap_servers, "numbers")
    send_while_it_is_killed(busy_broker, load, random_kills(3), seed=4)
    check_idempotent(load, read(busy_broker.bootstrap_servers, "numbers"))
    busy_broker.stop()
    check_files(busy_broker.data_dir)


def test_kill_while_logs_are_cleaned(busy_broker: BrokerProcess) -> None:
    create(busy_broker, "newest", COMPACTED)
    load = KeyedLoad(busy_broker.bootstrap_servers, "newest")
    send_while_it_is_killed(busy_broker, load, random_kills(4), seed=3)
    check_keyed(load, read(busy_broker.bootstrap_servers, "newest"))
    busy_broker.stop()
    check_files(busy_broker.data_dir, compacted_topics=["newest"])
    assert (busy_broker.data_dir / "cleaner-offset-checkpoint").exists()


def test_kill_with_fsync_before_every_acknowledgement(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", {**BUSY_SETTINGS, "oncelog.acks.fsync": "true"}).start()
    try:
        create(broker, "ledger", SMALL)
        load = TransactionalLoad(broker.bootstrap_servers, "ledger", "tx")
        killer = Killer(broker, kills=random_kills(3), seed=5)
        killer.start()
        while killer.is_alive():
            load.run(3)
        killer.finish()
        load.run(3)
        check_transactional(load, read(broker.bootstrap_servers, "ledger"))
    finally:
        broker.stop()
    check_files(broker.data_dir)
