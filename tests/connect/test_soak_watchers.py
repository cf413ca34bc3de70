"""The readers of a soak see what is not whole."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.connect.soak_watchers import Balances, Watcher, watch_copy
from tests.connect.topic_reader import Read
from tests.waiting import wait_until


def account(number: int, balance: int, lsn: int, index: int, snapshot: int = 0) -> Read:
    return Read("t", 0, {"id": number}, {"id": number, "balance": balance}, "u", "1", lsn, index, snapshot)


def balances() -> Balances:
    known = Balances(2, 200)
    known.take(account(1, 100, 1, 0, snapshot=1))
    known.take(account(2, 100, 1, 1, snapshot=1))
    known.check()
    return known


def test_half_of_a_transaction_is_noticed_at_its_end_and_by_the_next_one() -> None:
    known = balances()
    known.take(account(1, 90, 5, 0))
    with pytest.raises(AssertionError, match="is visible"):
        known.check()
    with pytest.raises(AssertionError, match="is visible"):
        known.take(account(1, 80, 6, 0))
    known = balances()
    known.take(account(1, 90, 5, 0))
    known.take(account(2, 110, 5, 1))
    known.check()


def test_a_record_that_comes_again_is_noticed() -> None:
    known = balances()
    known.take(account(1, 100, 5, 0))
    with pytest.raises(AssertionError, match="comes after"):
        known.take(account(1, 100, 5, 0))


def test_a_copy_with_half_of_a_transaction_is_noticed(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table accounts (id int primary key, balance bigint)")
        watcher = Watcher(lambda: watch_copy(database, 2, 200), tmp_path / "seen")
        connection.execute("insert into accounts values (1, 100), (2, 100)")
        wait_until(lambda: (tmp_path / "seen").exists() and int((tmp_path / "seen").read_text() or 0) > 1)
        watcher.check()
        connection.execute("update accounts set balance = 90 where id = 1")
        wait_until(lambda: watcher._child.has_ended())
    with pytest.raises(AssertionError, match="not whole"):
        watcher.finish()
