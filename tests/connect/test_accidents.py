"""Answers that are lost, statements that fail for a moment, disks that are full, transactions larger than memory."""

from __future__ import annotations

import random
import resource
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from oncelog.client import Admin, NewTopic
from oncelog.connect.database_sink import DatabaseSink
from oncelog.connect.kinds import PostgresSinkKind, SqliteSinkKind
from oncelog.connect.postgres_sink import PostgresSink
from oncelog.connect.settings import sink_settings
from oncelog.connect.supervisor import SupervisedConnector
from oncelog.core import failpoints
from oncelog.protocol.api_keys import ApiKey
from tests.connect.children import Child
from tests.connect.postgres import PostgresServer
from tests.connect.postgres_proxy import PostgresProxy
from tests.connect.test_postgres_source import Bank
from tests.connect.test_sinks import Target, send
from tests.unit.client.chaos import Accident, Chaos, Kind
from tests.waiting import wait_until


@pytest.fixture
def chaos(servers: str) -> Iterator[Chaos]:
    with Chaos(servers) as misbehaving:
        yield misbehaving


def run_until_current(bank: Bank) -> SupervisedConnector:
    connector = SupervisedConnector(bank.kind(), lambda status: None, until_current=True)
    connector.start()
    assert connector.join(300)
    assert connector.status.state == "ended", connector.status
    return connector


@pytest.mark.parametrize("kind", [Kind.LOSE_ANSWER, pytest.param(Kind.LOSE_REQUEST, marks=pytest.mark.long)])
def test_a_lost_answer_to_the_end_of_a_transaction_is_resolved(
    kind: Kind, database: str, chaos: Chaos, unique: Callable[[str], str]
) -> None:
    bank = Bank(database, chaos.bootstrap_servers, unique("bank"))
    run_until_current(bank)
    for seed in range(5):
        bank.transfer(random.Random(seed))
    chaos.once(ApiKey.END_TXN, Accident(kind))
    run_until_current(bank)
    assert chaos.happened[kind]
    bank.check()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_accidents_at_random_lose_and_repeat_nothing(
    seed: int, database: str, chaos: Chaos, unique: Callable[[str], str]
) -> None:
    dice = random.Random(seed)
    bank = Bank(database, chaos.bootstrap_servers, unique("bank"))
    run_until_current(bank)
    keys = {ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FETCH,
            ApiKey.ADD_OFFSETS_TO_TXN}  # fmt: skip
    kinds = [Kind.LOSE_ANSWER, Kind.LOSE_REQUEST, Kind.HALF_ANSWER, Kind.DELAY]
    chaos.accident = lambda key, request: Accident(dice.choice(kinds)) if key in keys and dice.random() < 0.15 else None
    for _ in range(8):
        for _ in range(dice.randrange(1, 6)):
            bank.transfer(dice)
        run_until_current(bank)
    chaos.accident = lambda key, request: None
    assert chaos.happened
    bank.check()


def sink_target(database: str, servers: str, name: str, admin: Admin) -> tuple[Target, int]:
    target = Target(PostgresSink, database, servers, name)
    admin.create_topics([NewTopic(name, 1, 1)])
    return target, send(servers, name, *((None, {"n": n, "source": "x"}) for n in range(20)))


@pytest.mark.parametrize("error", [psycopg.errors.SerializationFailure, *(pytest.param(error, marks=pytest.mark.long)
                                   for error in (psycopg.errors.DeadlockDetected, psycopg.errors.DiskFull,
                                                 psycopg.errors.AdminShutdown))])  # fmt: skip
def test_errors_of_the_moment_are_followed_by_another_attempt(
    error: type[psycopg.Error], database: str, servers: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    name = unique("moment")
    target, _ = sink_target(database, servers, name, admin)

    def fail() -> None:
        raise error("for a moment")

    failpoints.arm("sink.after_rows", failpoints.on_nth_hit(1, fail))
    given = {"name": name, "url": database, "topics": name, "table": "events", "mode": "append", "batch_rows": 7}
    kind = PostgresSinkKind(sink_settings(given, {"bootstrap.servers": servers}))
    connector = SupervisedConnector(kind, lambda status: None, until_current=True)
    connector.start()
    assert connector.join(300)
    assert (connector.status.state, connector.status.restarts) == ("ended", 1)
    assert target.execute("select n from events order by n") == [(n,) for n in range(20)]


def run_sink(database: str, servers: str, topic: str, **more: object) -> SupervisedConnector:
    given = {"name": topic, "url": database, "topics": topic, "batch_rows": 7, "batch_ms": 10, **more}
    kind = PostgresSinkKind(sink_settings(given, {"bootstrap.servers": servers}))
    connector = SupervisedConnector(kind, lambda status: None, until_current=True)
    connector.start()
    return connector


def ended(connector: SupervisedConnector) -> tuple[str, int]:
    assert connector.join(300)
    return connector.status.state, connector.status.restarts


def test_a_commit_whose_answer_is_lost_is_not_repeated(
    postgres: PostgresServer, database: str, servers: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    name = unique("lost")
    target, _ = sink_target(database, servers, name, admin)
    with PostgresProxy(postgres.port) as proxy:
        failpoints.arm("sink.after_offsets", failpoints.on_nth_hit(2, lambda: proxy.lose_answer_to(b"COMMIT")))
        url = database.replace(f":{postgres.port}/", f":{proxy.port}/")
        assert ended(run_sink(url, servers, name, table="events", mode="append")) == ("ended", 1)
    assert proxy.lost == 1
    assert target.execute("select n from events order by n") == [(n,) for n in range(20)]


def test_a_deadlock_with_somebody_else_is_followed_by_another_attempt(
    database: str, servers: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    name = unique("deadlock")
    target = Target(PostgresSink, database, servers, name)
    admin.create_topics([NewTopic(name, 1, 1)])
    target.execute("insert into items (id) values (1), (2)")
    send(servers, name, (1, {"id": 1, "name": "sink"}), (2, {"id": 2, "name": "sink"}))
    waiting = (
        "select count(*) from pg_stat_activity "
        f"where application_name = 'oncelog-connect-{name}' and wait_event_type = 'Lock'"
    )
    with psycopg.connect(database, autocommit=True) as connection:
        # PostgreSQL looks for a deadlock once in each wait, after this time: there has to be one by then.
        connection.execute(f"alter database \"{connection.info.dbname}\" set deadlock_timeout = '5s'")
    with psycopg.connect(database) as other:
        other.execute("set deadlock_timeout = '600s'")  # so that it is the sink that gives way
        other.execute("update items set amount = 7 where id = 2")
        connector = run_sink(database, servers, name, table="items")
        wait_until(lambda: target.execute(waiting) == [(1,)])
        other.execute("update items set amount = 7 where id = 1")
    assert ended(connector) == ("ended", 1)
    assert target.execute("select id, name, amount from items order by id") == [(1, "sink", 7), (2, "sink", 7)]


def test_a_transaction_that_cannot_be_serialised_is_written_again(
    database: str, servers: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    name = unique("serial")
    target, _ = sink_target(database, servers, name, admin)
    errors: list[str] = []
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            f"alter database \"{connection.info.dbname}\" set default_transaction_isolation = 'repeatable read'"
        )
    touch = "update oncelog_sink_offsets set instance = instance"
    failpoints.arm("sink.after_rows", failpoints.on_nth_hit(2, lambda: errors.extend(map(str, target.execute(touch)))))
    given = {"name": name, "url": database, "topics": name, "table": "events", "mode": "append", "batch_rows": 7}
    kind = PostgresSinkKind(sink_settings(given, {"bootstrap.servers": servers}))
    connector = SupervisedConnector(kind, lambda status: errors.append(status.error), until_current=True)
    connector.start()
    assert ended(connector) == ("ended", 1)
    assert any("could not serialize access" in error for error in errors)
    assert target.execute("select n from events order by n") == [(n,) for n in range(20)]


class FullAtFirst(SqliteSinkKind):
    """The first connection may have few pages."""

    opened = 0

    def _open(self) -> DatabaseSink:
        sink = super()._open()
        if not self.opened:
            sink._execute("pragma max_page_count = 20")
        self.opened += 1
        return sink


def test_a_full_disk_leaves_nothing_of_the_batch(
    tmp_path: Path, servers: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    name = unique("full")
    path = str(tmp_path / "full.db")
    with sqlite3.connect(path) as connection:
        connection.execute("create table events (n bigint, source text)")
    admin.create_topics([NewTopic(name, 1, 1)])
    send(servers, name, *((None, {"n": n, "source": "x" * 3000}) for n in range(50)))
    given = {"name": name, "url": path, "topics": name, "table": "events", "mode": "append"}
    kind = FullAtFirst(sink_settings(given, {"bootstrap.servers": servers}))
    connector = SupervisedConnector(kind, lambda status: None, until_current=True)
    connector.start()
    assert connector.join(300)
    assert (connector.status.state, connector.status.restarts) == ("ended", 1), connector.status
    with sqlite3.connect(path) as connection:
        assert connection.execute("select count(*), count(distinct n) from events").fetchall() == [(50, 50)]


@pytest.mark.long
def test_memory_stays_bounded_however_large_a_transaction_is(bank: Bank) -> None:
    bank.copy()
    bank.execute("insert into transfers select n, n from generate_series(1000, 1000999) n")

    def copy_and_measure() -> None:
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert bank.copy().records == 1_000_000
        grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
        assert grown_mb < 150, f"it took {grown_mb:.0f} MB"

    assert Child(copy_and_measure).wait(300) == 0


@pytest.fixture
def bank(database: str, servers: str, unique: Callable[[str], str]) -> Bank:
    return Bank(database, servers, unique("bank"))


def test_the_children_of_these_tests_are_really_killed() -> None:
    child = Child(signal.pause)
    child.kill()
    assert child.wait() == -signal.SIGKILL
