"""Each message has its effect once, however often it comes."""

from __future__ import annotations

import sqlite3
import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from oncelog.client import ConsumerRecord
from oncelog.connect.inbox import Inbox, record_id


@pytest.fixture(params=["sqlite", "postgres"])
def inbox_and_connection(request: pytest.FixtureRequest) -> tuple[Inbox, Any]:
    if request.param == "sqlite":
        connection: Any = sqlite3.connect(":memory:", isolation_level=None)
        inbox = Inbox("billing", style="?")
    else:
        connection = psycopg.connect(request.getfixturevalue("database"), autocommit=True)
        inbox = Inbox("billing")
    inbox.create(connection)
    inbox.create(connection)
    request.addfinalizer(connection.close)
    return inbox, connection


def test_a_message_is_new_once(inbox_and_connection: tuple[Inbox, Any]) -> None:
    inbox, connection = inbox_and_connection
    assert [inbox.is_new(connection, name) for name in ("a", "b", "a")] == [True, True, False]


def test_a_message_whose_transaction_was_rolled_back_is_new_again(inbox_and_connection: tuple[Inbox, Any]) -> None:
    inbox, connection = inbox_and_connection
    connection.execute("begin")
    assert inbox.is_new(connection, "a")
    connection.execute("rollback")
    assert inbox.is_new(connection, "a")


def test_old_ids_can_be_forgotten(inbox_and_connection: tuple[Inbox, Any]) -> None:
    inbox, connection = inbox_and_connection
    inbox.is_new(connection, "a")
    assert inbox.forget(connection, timedelta(hours=1)) == 0
    assert inbox.forget(connection, timedelta(hours=-1)) == 1
    assert inbox.is_new(connection, "a")


def test_a_second_consumer_waits_for_the_first_one_to_decide(database: str) -> None:
    inbox = Inbox("billing")
    with psycopg.connect(database, autocommit=True) as first, psycopg.connect(database, autocommit=True) as second:
        inbox.create(first)
        found: list[bool] = []
        with first.transaction():
            assert inbox.is_new(first, "a")
            other = threading.Thread(target=lambda: found.append(inbox.is_new(second, "a")))
            other.start()
            other.join(0.3)
            assert other.is_alive()
        other.join(60)
    assert found == [False]


def test_ids_are_those_of_events_or_places() -> None:
    plain = ConsumerRecord("t", 1, 2, 0, 0, None, None, (), -1)
    assert record_id(plain) == "t-1-2"
    assert record_id(plain._replace(headers=(("id", b"77"),))) == "77"


def test_another_style_is_refused() -> None:
    with pytest.raises(ValueError, match="give %s for psycopg"):
        Inbox("x", style=":1")
