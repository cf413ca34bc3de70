"""Clocks that jump and processes that stand still: no record is lost or comes twice."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.client import Admin
from oncelog.connect.kinds import Kind, PostgresSinkKind
from oncelog.connect.settings import sink_settings
from oncelog.connect.supervisor import SupervisedConnector
from oncelog.core import failpoints
from tests.connect.children import Child, stop_self
from tests.connect.test_postgres_source import Bank
from tests.waiting import wait_until

TRANSACTION_MS = 1500


def run_until_current(kind: Kind) -> None:
    connector = SupervisedConnector(kind, lambda status: None, until_current=True)
    connector.start()
    assert connector.join(300)
    assert connector.status.state == "ended", connector.status


def let_clocks_jump(seed: int) -> None:
    """In this process: the time of day to any day, the other clock ahead, as after a pause."""
    dice = random.Random(seed)
    real_time, real_monotonic = time.time, time.monotonic
    shift, ahead = 0.0, 0.0

    def time_of_day() -> float:
        nonlocal shift
        if dice.random() < 0.1:
            shift = dice.uniform(-1e9, 1e9)
        return real_time() + shift

    def monotonic() -> float:
        nonlocal ahead
        if dice.random() < 0.001:
            ahead += dice.uniform(0, 15)
        return real_monotonic() + ahead

    time.time, time.monotonic = time_of_day, monotonic


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))])
def test_clocks_that_jump_change_nothing(seed: int, database: str, servers: str, unique: Callable[[str], str]) -> None:
    bank = Bank(database, servers, unique("bank"))
    bank.execute("create table copies (id bigint primary key, amount bigint)")
    given = {"name": f"{bank.name}-out", "url": database, "topics": f"{bank.name}.transfers", "table": "copies",
             "batch_rows": 3}  # fmt: skip
    sink = PostgresSinkKind(sink_settings(given, {"bootstrap.servers": servers}))
    dice = random.Random(seed)

    def copy() -> None:
        let_clocks_jump(dice.randrange(10**9))
        run_until_current(bank.kind())
        run_until_current(sink)

    for _ in range(3):
        for _ in range(dice.randrange(3, 8)):
            bank.transfer(dice)
        assert Child(copy).wait(300) == 0
    bank.check()
    assert bank.execute("select * from copies order by id") == bank.execute("select * from transfers order by id")


def paused_at(point: str, run: Callable[[], object]) -> Child:
    """A child that has stopped at a failpoint."""

    def armed() -> None:
        failpoints.arm(point, failpoints.on_nth_hit(1, stop_self))
        run()

    child = Child(armed)
    wait_until(lambda: Path(f"/proc/{child.pid}/stat").read_text().split(")")[1].split()[0] == "T")
    return child


@pytest.mark.parametrize("point", ["source.after_produce", pytest.param("source.after_offsets", marks=pytest.mark.long),
                                   pytest.param("source.after_commit", marks=pytest.mark.long)])  # fmt: skip
def test_a_source_that_stands_still_longer_than_its_transaction_may_last_goes_on(
    point: str, database: str, servers: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    bank = Bank(database, servers, unique("bank"), transaction_timeout_ms=TRANSACTION_MS)
    run_until_current(bank.kind())
    for seed in range(5):
        bank.transfer(random.Random(seed))
    child = paused_at(point, lambda: run_until_current(bank.kind()))
    name = f"connect-{bank.name}"
    wait_until(lambda: admin.describe_transactions([name])[name].state not in ("Ongoing", "PrepareAbort"))
    child.signal(signal.SIGCONT)
    assert child.wait(300) == 0
    bank.check()
