"""A connector's first snapshot by Spark: one transaction, and the connector goes on behind it, whatever fails."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import oncelog.spark
from oncelog.core import failpoints
from oncelog.spark.source_options import OptionError
from tests.connect.postgres import PostgresServer, postgres_server
from tests.connect.test_postgres_source import Bank
from tests.spark.kafka import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]
ROWS = 2000


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def bank(kafka: Kafka, postgres: PostgresServer, name: Callable[[str], str]) -> Iterator[Bank]:
    made = Bank(postgres.create_database(f"bulk-{uuid.uuid4().hex[:8]}"), kafka.servers, name("bulk"))
    made.execute(f"insert into transfers (amount) select n from generate_series(1, {ROWS}) n")
    for table in ("accounts", "transfers"):
        kafka.create(f"{made.name}.{table}", 1)
    yield made
    failpoints.disarm_all()


def snapshot(spark: Any, bank: Bank) -> Any:
    given = {key: value for key, value in bank.settings.items() if key != "name"}
    return oncelog.spark.snapshot_postgres(spark, name=bank.name, bootstrap_servers=bank.servers, part_pages=2, **given)


class Died(BaseException):
    """Nothing catches it, as nothing catches a kill."""


def die() -> None:
    raise Died


def test_the_connector_goes_on_behind_the_snapshot(spark: Any, bank: Bank) -> None:
    dice, refused = random.Random(1), []

    def alter() -> None:
        """It would write the rows of tables that are being read to other places."""
        with pytest.raises(psycopg.errors.LockNotAvailable):
            bank.execute("set local lock_timeout = '50ms'", "alter table transfers alter amount type numeric")
        refused.append(True)

    failpoints.arm("spark.snapshot.begun", alter)
    failpoints.arm("spark.snapshot.written", lambda: [bank.transfer(dice) for _ in range(5)] and None)
    written = snapshot(spark, bank)
    assert written.records == Bank.ACCOUNTS + ROWS and refused
    assert snapshot(spark, bank) is None
    bank.transfer(dice)
    bank.copy()
    records = bank.check()
    assert sum(1 for record in records if record.snapshot) == Bank.ACCOUNTS + ROWS
    assert len(bank.execute("select id from transfers")) > ROWS


@pytest.mark.parametrize("by_connector", [False, True])
@pytest.mark.parametrize("point", ["begun", "written", "committed"])
def test_a_driver_that_dies_leaves_nothing_or_all(spark: Any, bank: Bank, point: str, by_connector: bool) -> None:
    dice = random.Random(2)
    failpoints.arm(f"spark.snapshot.{point}", die)
    with pytest.raises(Died):
        snapshot(spark, bank)
    failpoints.disarm_all()
    assert len(bank.read()) == (Bank.ACCOUNTS + ROWS if point == "committed" else 0)
    bank.transfer(dice)
    if not by_connector:
        snapshot(spark, bank)
    bank.transfer(dice)
    bank.copy()
    assert {record.snapshot for record in bank.check()} - {0} == {1 if point == "committed" else 2}


def test_an_instance_that_was_replaced_meanwhile_writes_nothing(spark: Any, bank: Bank) -> None:
    failpoints.arm("spark.snapshot.written", failpoints.on_nth_hit(1, lambda: bank.copy() and None))
    with pytest.raises(Exception, match="another"):
        snapshot(spark, bank)
    bank.copy()
    assert {record.snapshot for record in bank.check()} == {2}


def test_options_that_make_no_sense_are_refused(spark: Any) -> None:
    with pytest.raises(OptionError, match="at least one page"):
        oncelog.spark.snapshot_postgres(spark, name="x", bootstrap_servers="localhost:1", part_pages=0)
