"""kill -9 at random under load: nothing acknowledged is lost or doubled, order is kept, transactions are whole."""

from __future__ import annotations

import time

import pytest

from oncelog.testing import BrokerProcess
from tests.crash.conftest import StartBroker
from tests.crash.files import stop_and_check_files
from tests.crash.killer import BUSY_SETTINGS, COMPACTED, SETTINGS, SMALL, create, work_while_killed
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


def send_while_it_is_killed(broker: BrokerProcess, load: IdempotentLoad | KeyedLoad, kills: int, seed: int) -> None:
    def send() -> None:
        load.send(100)
        time.sleep(0.02)

    work_while_killed(broker, send, kills=kills, seed=seed)
    load.finish()


def test_kill_under_idempotent_load(broker: BrokerProcess) -> None:
    create(broker, "numbers")
    load = IdempotentLoad(broker.bootstrap_servers, "numbers")
    send_while_it_is_killed(broker, load, random_kills(4), seed=1)
    check_idempotent(load, read(broker.bootstrap_servers, "numbers"))
    assert sum(map(len, load.acknowledged.values())) > 500
    stop_and_check_files(broker)


@pytest.mark.parametrize("version", [0, 2])
def test_kill_under_transactional_load(start_broker: StartBroker, version: int) -> None:
    broker = start_broker({**SETTINGS, "transaction.version": version})
    create(broker, "ledger")
    load = TransactionalLoad(broker.bootstrap_servers, "ledger", "tx")
    work_while_killed(broker, lambda: load.run(5), kills=random_kills(4), seed=version)
    load.run(5)
    check_transactional(load, read(broker.bootstrap_servers, "ledger"))
    stop_and_check_files(broker)


def test_kill_under_both_loads_at_once(broker: BrokerProcess) -> None:
    """Plain and transactional records share partitions; two transactional producers take turns with one another."""
    create(broker, "mixed")
    plain = IdempotentLoad(broker.bootstrap_servers, "mixed")
    ledgers = [TransactionalLoad(broker.bootstrap_servers, "mixed", name) for name in ("a", "b")]

    def take_turns() -> None:
        plain.send(30)
        for ledger in ledgers:
            ledger.run(1)

    work_while_killed(broker, take_turns, kills=random_kills(3), seed=7)
    plain.finish()
    values = read(broker.bootstrap_servers, "mixed")
    check_idempotent(plain, {partition: [v for v in kept if ":" not in v] for partition, kept in values.items()})
    for ledger in ledgers:
        mine = {p: [v for v in kept if v.startswith(ledger.transactional_id)] for p, kept in values.items()}
        check_transactional(ledger, mine)
    stop_and_check_files(broker)


def test_kill_of_a_broker_that_rolls_and_checkpoints_all_the_time(busy_broker: BrokerProcess) -> None:
    create(busy_broker, "numbers", SMALL)
    load = IdempotentLoad(busy_broker.bootstrap_servers, "numbers")
    send_while_it_is_killed(busy_broker, load, random_kills(3), seed=4)
    check_idempotent(load, read(busy_broker.bootstrap_servers, "numbers"))
    stop_and_check_files(busy_broker)


def test_kill_while_logs_are_cleaned(busy_broker: BrokerProcess) -> None:
    create(busy_broker, "newest", COMPACTED)
    load = KeyedLoad(busy_broker.bootstrap_servers, "newest")
    send_while_it_is_killed(busy_broker, load, random_kills(4), seed=3)
    check_keyed(load, read(busy_broker.bootstrap_servers, "newest"))
    stop_and_check_files(busy_broker, compacted_topics=["newest"])
    assert (busy_broker.data_dir / "cleaner-offset-checkpoint").exists()


def test_kill_with_fsync_before_every_acknowledgement(start_broker: StartBroker) -> None:
    broker = start_broker({**BUSY_SETTINGS, "oncelog.acks.fsync": "true"})
    create(broker, "ledger", SMALL)
    load = TransactionalLoad(broker.bootstrap_servers, "ledger", "tx")
    work_while_killed(broker, lambda: load.run(3), kills=random_kills(3), seed=5)
    load.run(3)
    check_transactional(load, read(broker.bootstrap_servers, "ledger"))
    stop_and_check_files(broker)
