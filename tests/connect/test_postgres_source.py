"""Changes of PostgreSQL in topics: each once, in order, whole transactions, whatever dies."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from oncelog.client import Admin, Consumer, NewTopic, TopicPartition
from oncelog.connect.errors import BadRecord, ConnectorStopped, Fenced, Refused
from oncelog.connect.kinds import PostgresSourceKind, open_source_log
from oncelog.connect.metrics import ConnectMetrics
from oncelog.connect.pgoutput import parse_lsn
from oncelog.connect.progress import Progress, Status
from oncelog.connect.settings import source_settings
from oncelog.connect.source_task import SourceTask
from oncelog.connect.supervisor import SupervisedConnector
from oncelog.core import failpoints
from oncelog.testing.broker import BrokerProcess, broker
from tests.connect.children import Child, dying_at, dying_at_random, stop_self
from tests.connect.postgres import postgres_server
from tests.connect.topic_reader import check_stream, read_all, table_of
from tests.waiting import wait_until

STREAM_POINTS = ["source.before_take_over", "source.after_take_over", "source.after_read", "source.after_produce",
                 "source.after_offsets", "source.after_commit", "source.after_confirm"]  # fmt: skip
SNAPSHOT_POINTS = ["source.snapshot.noted", "source.snapshot.slot_made", "source.snapshot.table",
                   "source.snapshot.read", "source.snapshot.committed"]  # fmt: skip


def short_of(points: list[str], *short: str) -> list[Any]:
    """All points; those that are not among the short ones only in the long run."""
    return [point if point in short else pytest.param(point, marks=pytest.mark.long) for point in points]


class Bank:
    """A database with accounts whose sum never changes, and a connector for it."""

    ACCOUNTS = 10

    def __init__(self, url: str, servers: str, name: str, **given: Any) -> None:
        self.url, self.servers, self.name = url, servers, name
        self.topic = f"{name}.accounts"
        self.settings = {
            "name": name, "url": url, "publication": "bank", "topic": f"{name}.{{table}}", "batch_ms": 10,
            "batch_rows": 20, **given,
        }  # fmt: skip
        self.execute("create table accounts (id bigint primary key, balance bigint, note text)")
        self.execute("create table transfers (id bigserial primary key, amount bigint)")
        self.execute(f"insert into accounts select n, 100, 'x' from generate_series(1, {self.ACCOUNTS}) n")
        self.execute("create publication bank for table accounts, transfers")

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """All statements in one transaction."""
        with psycopg.connect(self.url) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def transfer(self, dice: random.Random) -> None:
        a, b = dice.sample(range(1, self.ACCOUNTS + 1), 2)
        amount = dice.randrange(1, 50)
        statements = [
            f"update accounts set balance = balance - {amount} where id = {a}",
            f"update accounts set balance = balance + {amount} where id = {b}",
            f"insert into transfers (amount) values ({amount})",
        ]
        if dice.random() < 0.2:
            statements.append("rollback")
        self.execute(*statements)

    def kind(self, **given: Any) -> PostgresSourceKind:
        client = {"bootstrap.servers": self.servers, "default.api.timeout.ms": 60_000}
        return PostgresSourceKind(source_settings({**self.settings, **given}, client))

    def copy(self, **given: Any) -> Progress:
        """Until all that is there now is in the log."""
        kind, progress = self.kind(**given), Progress()
        try:
            with kind.task(progress) as task:
                task.run(lambda: progress.is_current)
        finally:
            kind.close()
        return progress

    def read(self) -> list[Any]:
        return read_all(self.servers, f"{self.name}.accounts", f"{self.name}.transfers")

    def check(self) -> list[Any]:
        """The topics hold the tables, each change once, in order, and every transaction keeps the sum."""
        records = self.read()
        check_stream([record for record in records if not record.snapshot])
        for name in ("accounts", "transfers"):
            rows = self.execute(f"select to_jsonb(t) from {name} t")
            expected = sorted((row for (row,) in rows), key=lambda row: json.dumps(row, sort_keys=True))
            assert table_of(records, f"{self.name}.{name}") == expected, name
        inserts = [record for record in records if record.topic == f"{self.name}.transfers"]
        assert len(inserts) == len(expected), "each row of a table without updates is one record"
        check_sums([record for record in records if record.topic == self.topic])
        return records


def check_sums(records: list[Any]) -> None:
    balances: dict[int, int] = {}
    for number, record in enumerate(records):
        balances[record.key["id"]] = record.value["balance"]
        is_end = number + 1 == len(records) or records[number + 1].lsn != record.lsn
        assert not is_end or sum(balances.values()) == 100 * Bank.ACCOUNTS, f"half of {record.txid} is visible"


@pytest.fixture
def bank(database: str, servers: str, unique: Callable[[str], str]) -> Bank:
    return Bank(database, servers, unique("bank"))


def test_a_snapshot_and_the_changes_behind_it_are_copied_once(bank: Bank) -> None:
    dice = random.Random(1)
    bank.transfer(dice)
    bank.copy()
    records = bank.check()
    assert {record.op for record in records} == {"r"}
    assert {record.snapshot for record in records} == {1}
    for _ in range(20):
        bank.transfer(dice)
    bank.copy()
    assert {record.op for record in bank.check()} == {"r", "u", "c"}
    before = len(bank.read())
    bank.copy()
    assert len(bank.read()) == before


def test_a_snapshot_tells_how_far_it_is(bank: Bank) -> None:
    bank.execute("insert into transfers select n, n from generate_series(1, 3000) n")
    bank.execute("analyze accounts")  # and not the other one
    status = Status(bank.name)
    registry = CollectorRegistry()
    registry.register(ConnectMetrics(lambda: [status]))
    seen: dict[str, dict[str, Any]] = {}
    served = ""

    def look() -> bool:
        nonlocal served
        row = status.as_row()["snapshot"]
        if row is not None:
            seen[row["table"]] = row
            if row["rows"] == 1000:
                served = generate_latest(registry).decode()
        return status.progress.is_current

    kind = bank.kind()
    with kind.task(status.progress) as task:
        task.run(look)
    kind.close()
    assert seen["public.accounts"] == {"table": "public.accounts", "rows": 10, "estimated": 10}
    assert seen["public.transfers"]["rows"] == 3000 and 300 < seen["public.transfers"]["estimated"] < 30_000
    labels = f'{{connector="{bank.name}",table="public.transfers"}}'
    assert f"oncelog_connect_snapshot_rows{labels} 1000.0" in served
    assert f"oncelog_connect_snapshot_estimated{labels}" in served
    assert status.as_row()["snapshot"] is None


@pytest.mark.parametrize("point", short_of(STREAM_POINTS, "source.after_offsets", "source.after_commit"))
def test_a_kill_while_streaming_loses_and_repeats_nothing(bank: Bank, point: str) -> None:
    bank.copy()
    dice = random.Random(2)
    for _ in range(10):
        bank.transfer(dice)
    assert dying_at(point, bank.copy).wait() == -signal.SIGKILL
    bank.transfer(dice)
    assert Child(bank.copy).wait() == 0
    bank.check()


@pytest.mark.parametrize("point", short_of(SNAPSHOT_POINTS, "source.snapshot.table", "source.snapshot.read"))
def test_a_kill_during_the_snapshot_begins_it_again(bank: Bank, point: str) -> None:
    assert dying_at(point, bank.copy).wait() == -signal.SIGKILL
    bank.transfer(random.Random(3))
    assert Child(bank.copy).wait() == 0
    records = bank.check()
    is_done = point == "source.snapshot.committed"
    assert {record.snapshot for record in records} == ({0, 1} if is_done else {2})


@pytest.mark.parametrize(
    ("change", "name"),
    [("alter balance type numeric", "accounts"), ("rename to others", "others")],
    ids=["rewritten", "renamed"],
)
def test_a_table_that_is_made_anew_behind_the_snapshot_is_not_taken_for_empty(
    bank: Bank, change: str, name: str
) -> None:
    """A snapshot does not see rows that were written again since, and the stream does not bring them."""

    def alter() -> None:
        bank.execute(f"alter table accounts {change}")

    failpoints.arm("source.snapshot.slot_made", failpoints.on_nth_hit(1, alter))
    connector = SupervisedConnector(bank.kind(), lambda status: None, until_current=True)
    connector.start()
    assert connector.join(300)
    assert (connector.status.state, connector.status.restarts) == ("ended", 1), connector.status
    found = read_all(bank.servers, f"{bank.name}.{name}")
    assert [(record.value["id"], record.snapshot) for record in found] == [(n, 2) for n in range(1, 11)]


def test_tables_are_not_made_anew_while_their_snapshot_is_read(bank: Bank) -> None:
    refused = []

    def alter() -> None:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            bank.execute("set local lock_timeout = '50ms'", "alter table transfers alter amount type numeric")
        refused.append(True)

    bank.execute("insert into transfers (amount) values (1)")
    failpoints.arm("source.snapshot.table", failpoints.on_nth_hit(1, alter))
    bank.copy()
    assert refused
    bank.check()


@pytest.mark.long
def test_parts_of_a_snapshot_that_is_begun_again_are_marked(bank: Bank) -> None:
    assert dying_at("source.snapshot.part", lambda: bank.copy(snapshot_rows=4), 2).wait() == -signal.SIGKILL
    assert Child(lambda: bank.copy(snapshot_rows=4)).wait() == 0
    records = bank.read()
    assert [record.snapshot for record in records] == [1] * 8 + [2] * 10
    assert len(table_of(records, bank.topic)) == 10


@pytest.mark.parametrize("seed", [4, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 14))])
def test_kills_at_random_under_load_lose_and_repeat_nothing(bank: Bank, seed: int) -> None:
    dice = random.Random(seed)
    kills, seen = 0, 0
    reader = WholeTransactions(bank)
    with reader:
        for _ in range(12):
            for _ in range(dice.randrange(6)):
                bank.transfer(dice)
            child = dying_at_random([*STREAM_POINTS, *SNAPSHOT_POINTS], 0.06, dice.randrange(10**9), bank.copy)
            kills += child.wait() == -signal.SIGKILL
        assert Child(bank.copy).wait() == 0
        bank.check()
        end = end_of(bank)
        wait_until(lambda: reader.position >= end)
        seen = reader.seen
    assert kills and seen


@pytest.mark.parametrize("seed", [6, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(30, 33))])
def test_several_partitions_hold_each_change_once_whatever_dies(bank: Bank, seed: int) -> None:
    """A row stays in its partition, its changes in their order; a truncate is in all of them."""
    with Admin({"bootstrap.servers": bank.servers}) as admin:
        admin.create_topics([NewTopic(f"{bank.name}.{table}", 4, 1) for table in ("accounts", "transfers")])
    bank.copy()
    dice = random.Random(seed)
    kills = 0
    for number in range(10):
        for _ in range(dice.randrange(1, 8)):
            bank.transfer(dice)
        bank.execute(f"update accounts set id = id + 100 where id = {number * 2}", "delete from accounts where id = 11")
        bank.execute(f"insert into accounts values (11, {number}, 'x')")
        if number == 5:
            bank.execute("insert into transfers (amount) values (1)", "truncate transfers",
                         "insert into transfers select n, n from generate_series(2000, 2020) n")  # fmt: skip
        kills += dying_at_random(STREAM_POINTS, 0.1, dice.randrange(10**9), bank.copy).wait() == -signal.SIGKILL
    assert Child(bank.copy).wait() == 0
    records = bank.read()
    assert kills and {record.partition for record in records} == {0, 1, 2, 3}
    check_stream([record for record in records if not record.snapshot])
    assert sorted(record.partition for record in records if record.op == "t") == [0, 1, 2, 3]
    by_key: dict[tuple[str, str], set[int]] = {}
    for record in records:
        if record.op != "t":
            by_key.setdefault((record.topic, json.dumps(record.key)), set()).add(record.partition)
    assert {len(partitions) for partitions in by_key.values()} == {1}
    for name in ("accounts", "transfers"):
        rows = [row for (row,) in bank.execute(f"select to_jsonb(t) from {name} t")]
        expected = sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))
        assert table_of(records, f"{bank.name}.{name}") == expected != []


def test_connections_that_are_cut_in_mid_transaction_lose_and_repeat_nothing(bank: Bank) -> None:
    bank.copy()
    for seed in range(12):
        bank.transfer(random.Random(seed))

    def cut() -> None:
        bank.execute("select pg_terminate_backend(pid) from pg_stat_activity "
                     f"where application_name like 'oncelog-connect-{bank.name}%'")  # fmt: skip

    failpoints.arm("source.after_produce", failpoints.on_nth_hit(2, cut))
    connector = SupervisedConnector(bank.kind(batch_rows=5), lambda status: None, until_current=True)
    connector.start()
    assert connector.join(300)
    assert (connector.status.state, connector.status.restarts) == ("ended", 1), connector.status
    bank.check()


def end_of(bank: Bank) -> int:
    with Consumer({"bootstrap.servers": bank.servers, "isolation.level": "read_committed"}) as consumer:
        place = TopicPartition(bank.topic, 0)
        return consumer.end_offsets([place])[place]


class WholeTransactions:
    """Polls the accounts all the time. Whatever it sees so far ends with a whole transaction: the sum is right."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: BaseException | None = None
        self.seen = self.position = 0

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # noqa: BLE001  # told by __exit__
            self._error = error

    def _watch(self) -> None:
        place = TopicPartition(self._bank.topic, 0)
        balances: dict[int, int] = {}
        settings = {"bootstrap.servers": self._bank.servers, "isolation.level": "read_committed"}
        with Admin({"bootstrap.servers": self._bank.servers}) as admin:
            admin.create_topics([NewTopic(place.topic, 1)], if_not_exists=True)
        with Consumer(settings) as consumer:
            consumer.assign([place])
            consumer.seek_to_beginning(place)
            while not self._stop.is_set():
                for record in consumer.poll(timeout_ms=50, max_records=100_000):
                    row = json.loads(record.value)
                    balances[row["id"]] = row["balance"]
                    self.seen += 1
                self.position = consumer.position(place)
                if balances:
                    assert len(balances) == Bank.ACCOUNTS, "half of the snapshot is visible"
                    assert sum(balances.values()) == 100 * Bank.ACCOUNTS, "half of a transaction is visible"

    def __enter__(self) -> WholeTransactions:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        if self._error is not None:
            raise self._error


def test_an_older_instance_is_fenced_and_does_not_come_back(bank: Bank) -> None:
    bank.copy()

    def paused_while_reading() -> None:
        failpoints.arm("source.after_confirm", failpoints.on_nth_hit(1, stop_self))
        connector = SupervisedConnector(bank.kind(), lambda status: None)
        connector.start()
        assert connector.join(300)
        assert connector.status.state == "stopped" and "has taken over" in connector.status.error, connector.status

    bank.transfer(random.Random(5))
    old = Child(paused_while_reading)
    wait_until(lambda: Path(f"/proc/{old.pid}/stat").read_text().split(")")[1].split()[0] == "T")
    bank.transfer(random.Random(6))
    kind, progress = bank.kind(), Progress()
    with kind.task(progress) as task:
        task.run(lambda: progress.is_current)
        old.signal(signal.SIGCONT)
        assert old.wait() == 0
        bank.transfer(random.Random(7))
        goal = progress.records + 3
        _go_on(task, lambda: progress.records >= goal)
    kind.close()
    bank.check()


def _go_on(task: SourceTask, done: Callable[[], bool]) -> None:
    while not done():
        task.step()


@pytest.mark.long
def test_a_broker_that_is_killed_in_mid_transaction_is_waited_for(database: str, tmp_path: Path) -> None:
    with broker({"group.initial.rebalance.delay.ms": 0}, data_dir=tmp_path / "data") as process:
        bank = Bank(database, process.bootstrap_servers, "killed-broker")
        bank.copy()
        for seed in range(5):
            bank.transfer(random.Random(seed))
        restarter = threading.Timer(0.5, lambda: BrokerProcess.start(process))

        def kill_broker() -> None:
            process.kill()
            restarter.start()

        failpoints.arm("source.after_produce", failpoints.on_nth_hit(1, kill_broker))
        connector = SupervisedConnector(bank.kind(), lambda status: None, until_current=True)
        connector.start()
        assert connector.join(300)
        restarter.join()
        assert connector.status.state == "ended", connector.status
        bank.check()


@pytest.mark.long
def test_a_broker_that_is_away_for_longer_than_a_delivery_may_take_is_waited_for(database: str, tmp_path: Path) -> None:
    with broker({"group.initial.rebalance.delay.ms": 0}, data_dir=tmp_path / "data") as process:
        bank = Bank(database, process.bootstrap_servers, "away-broker")
        bank.copy()
        for seed in range(5):
            bank.transfer(random.Random(seed))
        settings = source_settings(bank.settings, {"bootstrap.servers": bank.servers, "default.api.timeout.ms": 1500})
        kind = PostgresSourceKind(settings)
        kind._log = open_source_log(settings)
        kind._log._settings |= {"delivery.timeout.ms": 1000, "request.timeout.ms": 500, "max.block.ms": 1000}
        restarter = threading.Timer(8, lambda: BrokerProcess.start(process))

        def kill_broker() -> None:
            process.kill()
            restarter.start()

        failpoints.arm("source.after_produce", failpoints.on_nth_hit(1, kill_broker))
        connector = SupervisedConnector(kind, lambda status: None, until_current=True)
        connector.start()
        assert connector.join(300)
        restarter.join()
        assert connector.status.state == "ended" and connector.status.restarts > 1, connector.status
        bank.check()


@pytest.mark.long
def test_a_database_that_is_killed_is_waited_for(servers: str, unique: Callable[[str], str]) -> None:
    with postgres_server() as server:
        bank = Bank(server.create_database("bank"), servers, unique("bank"))
        bank.copy()
        for seed in range(5):
            bank.transfer(random.Random(seed))
        restarted = threading.Event()

        def kill_server() -> None:
            server.kill()
            server.start()
            restarted.set()

        failpoints.arm("source.after_commit", failpoints.on_nth_hit(1, kill_server))
        connector = SupervisedConnector(bank.kind(), lambda status: None, until_current=True)
        connector.start()
        assert connector.join(300)
        assert restarted.is_set() and connector.status.state == "ended", connector.status
        bank.check()


def test_only_what_is_committed_comes_whatever_the_transaction_looks_like(bank: Bank) -> None:
    bank.copy()
    bank.execute("insert into transfers (amount) values (1)", "rollback")
    bank.execute(
        "insert into transfers (id, amount) values (901, 1)",
        "savepoint s",
        "insert into transfers (id, amount) values (902, 2)",
        "rollback to s",
        "insert into transfers (id, amount) values (903, 3)",
    )
    bank.execute("insert into transfers (id, amount) values (904, 4)", "prepare transaction 'two'")
    bank.copy()
    assert [r.key["id"] for r in bank.read() if r.topic == f"{bank.name}.transfers"] == [901, 903]
    with psycopg.connect(bank.url, autocommit=True) as connection:
        connection.execute("commit prepared 'two'")
    bank.execute("create table unpublished (n int)", "insert into unpublished select generate_series(1, 100)")
    bank.copy()
    assert [r.key["id"] for r in bank.read() if r.topic == f"{bank.name}.transfers"] == [901, 903, 904]
    bank.check()


@pytest.mark.long
def test_a_large_transaction_is_one_transaction_in_the_log(bank: Bank) -> None:
    bank.copy()
    bank.execute("insert into transfers select n, n from generate_series(1000, 20999) n")
    progress = bank.copy(batch_rows=100)
    assert progress.records == 20_000 and progress.commits <= 3
    bank.check()


def test_tables_may_change(bank: Bank) -> None:
    bank.copy()
    bank.execute("alter table accounts add column more int", "update accounts set more = 7 where id = 1")
    bank.execute("alter table accounts drop column note", "update accounts set more = 8 where id = 2")
    bank.execute("alter table accounts alter column more type text", "update accounts set more = 'x' where id = 3")
    bank.execute("update accounts set id = 77 where id = 4")
    bank.execute("delete from accounts where id = 5")
    bank.execute("alter table transfers rename to moves", "insert into moves (amount) values (5)")
    bank.copy()
    records = [record for record in read_all(bank.servers, bank.topic) if not record.snapshot]
    assert [(r.op, r.key["id"], r.value) for r in records] == [
        ("u", 1, {"id": 1, "balance": 100, "note": "x", "more": 7}),
        ("u", 2, {"id": 2, "balance": 100, "more": 8}),
        ("u", 3, {"id": 3, "balance": 100, "more": "x"}),
        ("d", 4, None),
        ("c", 77, {"id": 77, "balance": 100, "more": None}),
        ("d", 5, None),
    ]
    [moved] = read_all(bank.servers, f"{bank.name}.moves")
    assert moved.value["amount"] == 5
    bank.execute("truncate accounts")
    bank.copy()
    last = read_all(bank.servers, bank.topic)[-1]
    assert (last.op, last.key, last.value) == ("t", {}, None)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("alter table transfers rename to moves", {"id": 500}),
        ("create schema other; alter table transfers set schema other", {"id": 500}),
        ("alter table transfers rename id to number", {"id": 500, "amount": 2}),
        ("drop table transfers", {"id": 500, "amount": 2}),
    ],
    ids=["renamed", "moved", "key-renamed", "dropped"],
)
def test_a_table_with_full_identity_may_be_another_one_when_its_changes_are_read(
    bank: Bank, change: str, key: dict[str, int]
) -> None:
    """The stream does not say what its primary key was."""
    bank.execute("alter table transfers replica identity full")
    bank.copy()
    bank.execute("insert into transfers values (500, 1)")
    bank.execute("update transfers set amount = 2 where id = 500")
    bank.execute(*change.split(";"))
    bank.copy()
    records = read_all(bank.servers, f"{bank.name}.transfers")
    assert records[-1].key == key and records[-1].value == {"id": 500, "amount": 2}
    assert [record.op for record in records] == (["c", "u"] if len(key) == 1 else ["c", "d", "c"])


@pytest.mark.long
def test_a_large_value_that_was_not_changed_is_left_out_and_named(bank: Bank) -> None:
    bank.execute("alter table accounts alter column note set storage external")
    bank.execute("update accounts set note = repeat('y', 10000) where id in (1, 2)")
    bank.copy()
    bank.execute("update accounts set balance = 1 where id = 1")
    bank.execute("alter table accounts replica identity full")
    bank.execute("update accounts set balance = 2 where id = 2")
    bank.copy()
    small, full = [record for record in read_all(bank.servers, bank.topic) if not record.snapshot]
    assert small.value == {"id": 1, "balance": 1}
    assert full.value == {"id": 2, "balance": 2, "note": "y" * 10_000} and full.key == {"id": 2}
    with Consumer({"bootstrap.servers": bank.servers}) as consumer:
        consumer.assign([TopicPartition(bank.topic, 0)])
        consumer.seek_to_beginning()
        records = []
        while len(records) < 12:
            records += consumer.poll(timeout_ms=500)
    assert dict(records[10].headers)["unchanged"] == b"note"


def test_values_of_all_kinds_are_the_same_in_snapshot_and_stream(bank: Bank) -> None:
    bank.execute(
        "create table kinds (id int primary key, b boolean, f float8, n numeric, j jsonb, t timestamptz, d date, "
        "a int[], y bytea, u uuid, s text)",
        "alter publication bank add table kinds",
        "create table first as select 1 as id, true as b, 0.1::float8 as f, 1.50::numeric as n, "
        "'{\"x\": [1, null]}'::jsonb as j, '2026-01-02 03:04:05.678+02'::timestamptz as t, '2026-01-02'::date as d, "
        "array[1,2] as a, '\\x00ff'::bytea as y, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid as u, "
        "E'q\"\\\\\\n\\t\\u00e9' as s",
        "insert into kinds select * from first",
        "insert into kinds (id, f) values (2, 'NaN'), (3, '-Infinity'), (4, 1e300)",
    )
    bank.copy()
    bank.execute("insert into kinds select id + 10, b, f, n, j, t, d, a, y, u, s from kinds")
    bank.copy()
    records = read_all(bank.servers, f"{bank.name}.kinds")
    assert [record.op for record in records] == ["r"] * 4 + ["c"] * 4
    for read, streamed in zip(records[:4], records[4:], strict=True):
        assert {**read.value, "id": 0} == {**streamed.value, "id": 0}
    first = records[0].value
    assert first["b"] is True and first["f"] == 0.1 and first["n"] == "1.50" and first["j"] == {"x": [1, None]}
    assert first["t"] == "2026-01-02 01:04:05.678+00" and first["y"] == "\\x00ff" and first["s"] == 'q"\\\n\té'
    assert [record.value["f"] for record in records[1:4]] == ["NaN", "-Infinity", 1e300]


def test_the_encoding_of_the_environment_does_not_change_texts(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is another text if its bytes are taken for UTF-8, the second one is none in LATIN1."""
    texts = ["\u00c3\u00a9", "\u20ac"]
    for first in (100, 200):
        for number, text in enumerate(texts, first):
            bank.execute(f"insert into accounts values ({number}, 0, '{text}')")
        with monkeypatch.context() as patch:
            patch.setenv("PGCLIENTENCODING", "LATIN1")
            bank.copy()
    records = [record for record in read_all(bank.servers, bank.topic) if record.key["id"] >= 100]
    assert [record.value["note"] for record in records] == texts * 2
    assert [record.op for record in records] == ["r", "r", "c", "c"]


@pytest.mark.long
def test_debezium_envelopes_have_what_its_readers_look_for(bank: Bank) -> None:
    bank.copy(format="debezium")
    bank.execute("alter table accounts replica identity full", "alter table accounts add more jsonb")
    bank.execute("update accounts set balance = 5, more = '[1]' where id = 1", "delete from accounts where id = 2")
    bank.copy(format="debezium")
    records = read_all(bank.servers, bank.topic)
    assert records[0].value["op"] == "r" and records[0].value["source"]["snapshot"] == "true"
    update, delete, tombstone = records[-3:]
    assert update.value["before"]["balance"] == 100 and update.value["after"]["balance"] == 5
    assert update.value["after"]["more"] == "[1]"
    assert update.value["source"]["table"] == "accounts" and update.value["source"]["db"]
    places = [record.value["source"]["lsn"] for record in (update, delete)]
    assert update.lsn > places[1] > places[0], "of the changes, which are before their commit"
    sequences = [json.loads(record.value["source"]["sequence"]) for record in (records[0], update, delete)]
    assert sequences[0] == [None, str(records[0].lsn)]
    assert [int(place) for _, place in sequences[1:]] == places and sequences[1][0] == sequences[2][0]
    assert records[0].lsn <= int(sequences[1][0]) < places[0]
    assert update.value["transaction"]["total_order"] == 1 and delete.value["transaction"]["total_order"] == 2
    assert delete.value["op"] == "d" and delete.value["before"]["id"] == 2 and delete.value["after"] is None
    assert tombstone.value is None and tombstone.key == delete.key == {"id": 2}


def test_what_does_not_fit_is_refused_with_the_reason(bank: Bank) -> None:
    bank.copy()
    slot = f"oncelog_{bank.name.replace('-', '_')}"
    with Admin({"bootstrap.servers": bank.servers}) as admin:
        place = TopicPartition("oncelog-connect", 0)
        stored = admin.group_offsets(f"connect-{bank.name}", [place])[place]

        def refused_with(change: dict[str, Any], offset: int | None = None) -> str:
            note = json.dumps({**json.loads(stored.metadata), **change})
            admin.alter_group_offsets(
                f"connect-{bank.name}", {place: stored._replace(offset=offset or stored.offset, metadata=note)}
            )
            with pytest.raises(Refused) as caught:
                bank.copy()
            return str(caught.value)

        assert "another server" in refused_with({"system": "1"})
        assert "accept_timeline = 1" in refused_with({"timeline": 7})
        assert "belongs to the slot other" in refused_with({"slot": "other"})
        assert "restored from a backup" in refused_with({}, 2**50)
        assert "version" in refused_with({"version": 99})
        admin.alter_group_offsets(f"connect-{bank.name}", {place: stored})
        bank.execute("insert into transfers (amount) values (1)")
        bank.execute(f"select pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
        assert "somebody else has moved it" in refused_with({})
        admin.delete_groups([f"connect-{bank.name}"])
        with pytest.raises(Refused, match="but no stored position"):
            bank.copy()
        bank.execute(f"select pg_drop_replication_slot('{slot}')")
        assert "is gone" in refused_with({})
        bank.execute("drop publication bank")
        assert "there is no publication bank" in refused_with({})


def test_events_of_an_outbox_go_to_their_topics_if_and_only_if_their_transaction_commits(bank: Bank) -> None:
    given = {
        "outbox_table": "public.outbox",
        "outbox_prefix": "events",
        "outbox_topic": f"{bank.name}.{{aggregatetype}}",
    }

    def insert(number: int) -> str:
        columns = "(aggregatetype, aggregateid, type, payload)"
        return f"""insert into outbox {columns} values ('order', 'k', 'paid', '{{"n": {number}}}')"""

    def emit(is_transactional: str, prefix: str, number: int) -> str:
        event = json.dumps({"aggregatetype": "order", "aggregateid": "k", "payload": {"n": number}})
        return f"select pg_logical_emit_message({is_transactional}, '{prefix}', '{event}')"

    bank.execute(
        "create table outbox (id bigserial primary key, aggregatetype text, aggregateid text, type text, "
        "payload jsonb)",
        "alter publication bank add table outbox",
        insert(1),
    )
    bank.copy(**given)
    bank.execute(insert(2), "delete from outbox", "update accounts set balance = 1 where id = 1")
    bank.execute(insert(90), emit("true", "events", 91), "rollback")
    bank.execute(emit("false", "events", 92), "rollback")
    bank.execute(emit("true", "other", 93))
    bank.execute(emit("true", "events", 3))

    def run() -> None:
        bank.copy(**given)

    assert dying_at("source.after_commit", run).wait() == -signal.SIGKILL
    assert Child(run).wait() == 0
    with Consumer({"bootstrap.servers": bank.servers, "isolation.level": "read_committed"}) as consumer:
        consumer.assign([TopicPartition(f"{bank.name}.order", 0)])
        consumer.seek_to_beginning()
        found = []
        while len(found) < 3:
            found += consumer.poll(timeout_ms=500)
        assert not consumer.poll(timeout_ms=200)
    assert [(record.key, json.loads(record.value)["n"]) for record in found] == [(b"k", 1), (b"k", 2), (b"k", 3)]
    assert dict(found[1].headers)["type"] == b"paid" and dict(found[1].headers)["index"] == b"0"
    bank.execute("select pg_logical_emit_message(true, 'events', 'no JSON')")
    with pytest.raises(BadRecord, match="is not JSON"):
        run()


def test_a_payload_of_bytes_is_written_as_it_is(bank: Bank) -> None:
    given = {"outbox_table": "public.outbox", "outbox_topic": f"{bank.name}.{{aggregatetype}}"}
    insert = "insert into outbox values ('\\x01ff', 'order', 'k', '\\x00000000010e')"
    bank.execute("create table outbox (id bytea, aggregatetype text, aggregateid text, payload bytea)",
                 "alter publication bank add table outbox", insert)  # fmt: skip
    bank.copy(**given)
    bank.execute(insert, "insert into outbox values (null, 'order', 'k', null)")
    bank.copy(**given)
    with Consumer({"bootstrap.servers": bank.servers}) as consumer:
        consumer.assign([TopicPartition(f"{bank.name}.order", 0)])
        consumer.seek_to_beginning()
        found = []
        while len(found) < 3:
            found += consumer.poll(timeout_ms=500)
    assert [record.value for record in found] == [b"\0\0\0\0\1\x0e"] * 2 + [None]
    assert [dict(record.headers).get("id") for record in found] == [b"\1\xff"] * 2 + [None]


@pytest.mark.long
def test_a_record_that_is_too_large_stops_the_source_and_is_named(bank: Bank) -> None:
    bank.copy()
    bank.execute("update accounts set note = repeat('x', 3000) where id = 7")
    with pytest.raises(Refused, match=r'with the key \{"id":7\} has 3\d+ bytes, and max_request_size is 2000'):
        bank.copy(max_request_size=2000)
    bank.copy()
    bank.check()


@pytest.mark.long
def test_a_slot_whose_log_was_removed_is_refused(servers: str, unique: Callable[[str], str]) -> None:
    with postgres_server(settings={"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB"}) as server:
        bank = Bank(server.create_database("bank"), servers, unique("bank"))
        bank.copy()
        bank.execute("create table filler (t text)")
        for _ in range(4):
            bank.execute("insert into filler select repeat(md5(n::text), 30) from generate_series(1, 20000) n")
            with psycopg.connect(bank.url, autocommit=True) as connection:
                connection.execute("select pg_switch_wal()")
                connection.execute("checkpoint")
        with pytest.raises(Refused, match="has removed log that the slot"):
            bank.copy()


@pytest.mark.long
def test_an_idle_source_confirms_what_is_not_for_it(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.connect.source_task.IDLE_COMMIT_S", 0.1)
    bank.copy()
    kind, progress = bank.kind(), Progress()
    with kind.task(progress) as task:
        task.start()
        bank.execute("create table busy (n int)", "insert into busy select generate_series(1, 10000)")
        [(end,)] = bank.execute("select pg_current_wal_flush_lsn()::text")
        deadline_s = time.monotonic() + 60
        while confirmed(bank) < parse_lsn(end):
            assert time.monotonic() < deadline_s
            task.step()
    kind.close()
    bank.copy()


def test_an_idle_position_is_committed_again_even_if_the_server_never_asks(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups expire otherwise. With a time-out of 0 the server sends nothing while nothing happens."""
    monkeypatch.setattr("oncelog.connect.source_task.REPEAT_COMMIT_S", 0.3)
    monkeypatch.setattr("oncelog.connect.postgres_source.STATUS_EVERY_S", 0.1)
    with psycopg.connect(bank.url, autocommit=True) as connection:
        connection.execute(f'alter database "{connection.info.dbname}" set wal_sender_timeout = 0')
    bank.copy()
    kind, progress = bank.kind(), Progress()
    with kind.task(progress) as task:
        task.start()
        deadline_s = time.monotonic() + 30  # every 15 s the server writes something by itself, and tells of that
        while progress.commits < 3:
            assert time.monotonic() < deadline_s, f"{progress.commits} commits"
            task.step()
    kind.close()
    assert progress.records == 0
    bank.copy()


@pytest.mark.long
def test_a_database_can_be_shut_down_while_a_source_is_connected(servers: str, unique: Callable[[str], str]) -> None:
    with postgres_server() as server:
        bank = Bank(server.create_database("bank"), servers, unique("bank"))
        connector = SupervisedConnector(bank.kind(), lambda status: None)
        connector.start()
        wait_until(lambda: connector.status.progress.position != "")
        bank.execute("create table other (n int)", "insert into other values (1)")
        started_s = time.monotonic()
        server.stop()
        assert time.monotonic() - started_s < 30, "a server waits until its log is confirmed"
        connector.stop()
        assert connector.join(300)


def confirmed(bank: Bank) -> int:
    [(lsn,)] = bank.execute("select confirmed_flush_lsn::text from pg_replication_slots "
                            f"where slot_name = 'oncelog_{bank.name.replace('-', '_')}'")  # fmt: skip
    return parse_lsn(lsn)


@pytest.mark.long
def test_a_table_without_a_key_is_refused_only_for_updates(bank: Bank) -> None:
    bank.execute("create table keyless (n int)", "alter publication bank add table keyless")
    bank.execute("insert into keyless values (1)")
    bank.copy()
    bank.execute("alter table keyless replica identity full", "insert into keyless values (2)")
    bank.copy()
    assert [r.value["n"] for r in read_all(bank.servers, f"{bank.name}.keyless")] == [1, 2]
    bank.execute("update keyless set n = 3 where n = 2")
    with pytest.raises(ConnectorStopped, match="has no primary key"):
        bank.copy()


PRIMARY, UNIQUE = "id int primary key", "email text not null unique"
BY_EMAIL = "alter table people replica identity using index people_email_key"


@pytest.mark.parametrize(
    ("table", "identity", "key"),
    [
        (f"{PRIMARY}, {UNIQUE}", BY_EMAIL, {"email"}),
        (f"id int not null, {UNIQUE}", BY_EMAIL, {"email"}),
        (f"{PRIMARY}, email text not null, constraint people_email_key unique (id, email)", BY_EMAIL, {"id"}),
        (f"{PRIMARY} deferrable, {UNIQUE}", "alter table people replica identity full", {"id"}),
        (f"id int, {UNIQUE}, primary key (id) include (email)", "select 1", {"id"}),
    ],
    ids=["index", "no-primary-key", "index-with-primary-key", "full", "included"],
)
def test_a_row_has_one_key_in_snapshot_and_stream_whatever_its_identity(
    bank: Bank, table: str, identity: str, key: set[str]
) -> None:
    bank.execute(f"create table people ({table}, n int)", identity, "alter publication bank add table people",
                 "insert into people select n, n || '@x', 0 from generate_series(1, 6) n")  # fmt: skip
    bank.copy()
    bank.execute("update people set n = 1 where id <= 4", "delete from people where id = 2")
    bank.execute("update people set email = 'new@x' where id = 3", "update people set id = 70 where id = 4")
    bank.copy()
    records = read_all(bank.servers, f"{bank.name}.people")
    assert {frozenset(record.key) for record in records} == {frozenset(key)}
    rows = [row for (row,) in bank.execute("select to_jsonb(t) from people t")]
    assert table_of(records, f"{bank.name}.people") == sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def test_a_primary_key_that_can_be_deferred_is_the_key_in_snapshot_and_stream(bank: Bank) -> None:
    """PostgreSQL has no identity for such a table: it can only be inserted into."""
    bank.execute("create table late (id int primary key deferrable)", "alter publication bank add table late",
                 "insert into late values (1)")  # fmt: skip
    bank.copy()
    bank.execute("insert into late values (2)")
    bank.copy()
    assert [record.key for record in read_all(bank.servers, f"{bank.name}.late")] == [{"id": 1}, {"id": 2}]


def test_columns_that_are_generated_are_in_snapshot_and_stream_or_in_none(bank: Bank) -> None:
    with psycopg.connect(bank.url) as connection:
        is_published = connection.info.server_version >= 180000
    bank.execute("create table doubles (id int primary key, n int generated always as (id * 2) stored)",
                 "alter publication bank add table doubles", "insert into doubles values (1)")  # fmt: skip
    if is_published:
        bank.execute("alter publication bank set (publish_generated_columns = stored)")
    bank.copy()
    bank.execute("insert into doubles values (2)")
    bank.copy()
    values = [record.value for record in read_all(bank.servers, f"{bank.name}.doubles")]
    assert values == ([{"id": 1, "n": 2}, {"id": 2, "n": 4}] if is_published else [{"id": 1}, {"id": 2}])


def test_fenced_is_told_when_the_id_was_taken(bank: Bank) -> None:
    bank.copy()
    kind, progress = bank.kind(), Progress()
    with kind.task(progress) as task:
        task.start()
        bank.copy()
        bank.transfer(random.Random(1))
        with pytest.raises((Fenced, psycopg.OperationalError)):
            _go_on(task, lambda: False)
    with kind.task(progress) as task, pytest.raises(Fenced):
        task.start()
    kind.close()
    bank.copy()
    bank.check()
