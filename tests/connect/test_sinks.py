"""Sinks into SQLite and PostgreSQL: what is in the table is what read_committed readers see, whatever dies."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oncelog.client import Admin, Consumer, CorruptBatch, NewTopic, Producer, TopicPartition
from oncelog.connect import sink_task
from oncelog.connect.database_sink import DatabaseSink
from oncelog.connect.errors import BadRecord, Fenced, Refused
from oncelog.connect.kinds import PostgresSinkKind
from oncelog.connect.postgres_sink import PostgresSink
from oncelog.connect.settings import sink_settings
from oncelog.connect.sink import Instance
from oncelog.connect.sink_task import SinkTask
from oncelog.connect.sqlite_sink import SqliteSink
from oncelog.connect.supervisor import SupervisedConnector
from oncelog.core import failpoints
from oncelog.schemas.registry_client import RegistryClient
from oncelog.schemas.schema import Schema
from oncelog.schemas.serialization import Serializer
from oncelog.testing import broker
from tests.connect.children import Child, dying_at, dying_at_random, stop_self
from tests.registries import serving_registry
from tests.unit.client.poison import READABLE, make_poisoned_topic
from tests.waiting import wait_until

POINTS = ["sink.before_claim", "sink.after_claim", "sink.after_read", "sink.after_rows", "sink.after_offsets",
          "sink.after_commit"]  # fmt: skip


class Target:
    """A database with tables `items` (by key) and `events` (without one)."""

    def __init__(self, kind: type[DatabaseSink], url: str, servers: str, name: str) -> None:
        self.kind, self.url, self.servers, self.name = kind, url, servers, name
        json_type = "jsonb" if kind is PostgresSink else "text"
        self.execute(f"create table items (id bigint primary key, name text, amount bigint check (amount >= 0), "
                     f"more {json_type})")  # fmt: skip
        self.execute("create table events (n bigint, source text)")

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        if self.kind is PostgresSink:
            with psycopg.connect(self.url, autocommit=True) as connection:
                cursor = connection.execute(sql)
                return cursor.fetchall() if cursor.description else []
        with sqlite3.connect(self.url) as connection:
            return connection.execute(sql).fetchall()

    def task(self, topic: str, instance: Instance | None = None, **given: Any) -> SinkTask:
        settings = sink_settings(
            {"name": self.name, "url": self.url, "topics": topic, "table": "items",
             "batch_ms": 20, "batch_rows": 7, **given},
            {"bootstrap.servers": self.servers},
        )  # fmt: skip
        return SinkTask(settings, self.kind(settings, instance or Instance()))

    def drain(self, topic: str, end: int, **given: Any) -> SinkTask:
        """Read until the partition's offset is stored in the database."""
        with self.task(topic, **given) as task:
            task.run(lambda: self.offsets(topic) == {0: end})
        return task

    def offsets(self, topic: str) -> dict[int, int]:
        sql = f"select part, next_offset from oncelog_sink_offsets where topic = '{topic}' order by part"
        try:
            return dict(self.execute(sql))
        except (psycopg.errors.UndefinedTable, sqlite3.OperationalError):
            return {}


@pytest.fixture(params=[SqliteSink, PostgresSink], ids=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path, servers: str, unique: Callable[[str], str]) -> Target:
    is_postgres = request.param is PostgresSink
    url = request.getfixturevalue("database") if is_postgres else str(tmp_path / "target.db")
    return Target(request.param, url, servers, unique("sink"))


@pytest.fixture
def topic(admin: Admin, unique: Callable[[str], str]) -> str:
    name = unique("input")
    admin.create_topics([NewTopic(name, 1, 1)])
    return name


def send(servers: str, topic: str, *records: tuple[Any, Any], headers: Any = None) -> int:
    """Keys and values as JSON, None as it is. Returns the end of partition 0."""
    with Producer({"bootstrap.servers": servers}) as producer:
        for key, value in records:
            encoded = None if value is None else json.dumps(value)
            producer.send(topic, encoded, json.dumps(key), headers=headers)
        producer.flush()
    return end_of(servers, topic)


def end_of(servers: str, topic: str) -> int:
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        place = TopicPartition(topic, 0)
        return consumer.end_offsets([place])[place]


def test_rows_are_upserted_and_deleted_by_key(target: Target, topic: str) -> None:
    end = send(
        target.servers,
        topic,
        ({"id": 1}, {"id": 1, "name": "a", "amount": 1, "more": {"x": [1]}}),
        ({"id": 2}, {"id": 2, "name": "b"}),
        (1, {"amount": 5}),  # a field that is left out is not changed
        ({"id": 2}, None),
        ({"id": 3}, {"id": 3, "name": "c"}),
        ({"id": 3}, None),
        ({"id": 3}, {"id": 3, "amount": 9}),  # and not after a delete
    )
    target.drain(topic, end, batch_rows=100)
    rows = target.execute("select id, name, amount from items order by id")
    assert rows == [(1, "a", 5), (3, None, 9)]
    [(more,)] = target.execute("select more from items where id = 1")
    assert (json.loads(more) if isinstance(more, str) else more) == {"x": [1]}
    send(target.servers, topic, ({"id": 1}, None), ({"id": 3}, {"name": "d"}))
    target.drain(topic, end + 2)
    assert target.execute("select id, name, amount from items") == [(3, "d", 9)]


def test_rows_of_a_batch_are_what_one_record_after_the_other_would_leave(target: Target, topic: str) -> None:
    target.execute("create table users (id varchar(9) primary key, n bigint, big text not null)")
    first = {"id": "1", "n": 1, "big": "x"}
    end = send(target.servers, topic, (1, first), (1, None), (2, {**first, "id": "2"}))  # the keys are numbers
    target.drain(topic, end, table="users")
    assert target.execute("select * from users") == [("2", 1, "x")]
    send(target.servers, topic, ("2", {"id": "2", "n": 3}), ("2", {"id": "2"}))  # without what must not be null
    target.drain(topic, end + 2, table="users")
    assert target.execute("select * from users") == [("2", 3, "x")]
    send(target.servers, topic, ("4", {"id": "4", "n": 3}))
    with pytest.raises(BadRecord, match="big"):
        target.drain(topic, end + 3, table="users")


def test_columns_may_have_any_name(target: Target, topic: str) -> None:
    names = ["a.b", "paid?", "50%", "%s", 'say "so"', "?"]
    columns = ", ".join('"' + name.replace('"', '""') + '" bigint' for name in names)
    target.execute(f'create table odd ({columns}, primary key ("a.b", "paid?"))')
    row = dict(zip(names, range(6), strict=True))
    end = send(target.servers, topic, (None, row), (None, {**row, "?": 7}), (None, {**row, "a.b": 8}))
    target.drain(topic, end, table="odd")
    assert target.execute('select * from odd order by "a.b"') == [(0, 1, 2, 3, 4, 7), (8, 1, 2, 3, 4, 5)]
    send(target.servers, topic, ({"a.b": 8, "paid?": 1}, None))
    target.drain(topic, end + 1, table="odd")
    assert target.execute("select * from odd") == [(0, 1, 2, 3, 4, 7)]


def test_without_arrow_records_are_read_as_objects(target: Target, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.connect.sink_task._has_columns", lambda: False)
    end = send(target.servers, topic, *((n % 9, {"id": n % 9, "amount": n}) for n in range(20)), (3, None))
    target.drain(topic, end)
    expected = [(key, max(n for n in range(20) if n % 9 == key)) for key in range(9) if key != 3]
    assert target.execute("select id, amount from items order by id") == expected


def test_rows_are_appended_and_deletes_refused(target: Target, topic: str) -> None:
    end = send(target.servers, topic, *((None, {"n": n % 3, "source": "s"}) for n in range(20)))
    target.drain(topic, end, table="events", mode="append")
    assert sorted(target.execute("select n from events")) == sorted((n % 3,) for n in range(20))
    end = send(target.servers, topic, ({"n": 1}, None))
    with pytest.raises(BadRecord, match=r"offset 20 .*it is a delete, and the sink appends"):
        target.drain(topic, end, table="events", mode="append")


@pytest.mark.parametrize("target", [PostgresSink], ids=["postgres"], indirect=True)
def test_stages_do_not_grow_with_the_choices_of_columns(target: Target, topic: str) -> None:
    """In the sink of PostgreSQL rows go through temporary tables, which stay for its next batches."""
    shapes: list[dict[str, Any]] = [{}, {"name": "a"}, {"amount": 1}, {"name": "b", "amount": 2}, {"more": [1]}]
    end = send(target.servers, topic, *((n, {"id": n, **shape}) for n, shape in enumerate(shapes)), (0, None))
    with target.task(topic) as task:
        task.run(lambda: target.offsets(topic) == {0: end})
        stages = target.execute("select count(*) from pg_class where relname like 'oncelog_stage%' and relkind = 'r'")
    assert stages == [(1,)]
    wanted = [(1, "a", None, None), (2, None, 1, None), (3, "b", 2, None), (4, None, None, [1])]
    assert target.execute("select id, name, amount, more from items order by id") == wanted


@pytest.mark.long
def test_truncate_empties_the_table(target: Target, topic: str) -> None:
    send(target.servers, topic, (1, {"id": 1}), (2, {"id": 2}))
    send(target.servers, topic, ({}, None), headers={"op": "t"})
    target.drain(topic, send(target.servers, topic, (3, {"id": 3})))
    assert target.execute("select id from items") == [(3,)]


@pytest.mark.long
def test_debezium_envelopes_are_understood(target: Target, topic: str) -> None:
    end = send(
        target.servers,
        topic,
        ({"id": 1}, {"op": "c", "after": {"id": 1, "name": "a", "amount": 2}}),
        ({"id": 1}, {"op": "u", "after": {"id": 1, "name": "__debezium_unavailable_value", "amount": 3}}),
        ({"id": 2}, {"op": "r", "after": {"id": 2, "name": "b", "amount": 0}}),
        ({"id": 2}, {"op": "d", "before": {"id": 2}, "after": None}),
        ({"id": 2}, None),
    )
    target.drain(topic, end, format="debezium")
    assert target.execute("select id, name, amount from items") == [(1, "a", 3)]


def test_only_committed_records_are_written_and_offsets_skip_the_rest(target: Target, topic: str) -> None:
    with Producer({"bootstrap.servers": target.servers, "transactional.id": topic}) as producer:
        producer.init_transactions()
        for number in range(12):
            producer.begin_transaction()
            producer.send(topic, json.dumps({"id": number}), json.dumps(number))
            producer.abort_transaction() if number % 3 else producer.commit_transaction()
    end = end_of(target.servers, topic)
    target.drain(topic, end)
    assert target.execute("select id from items order by id") == [(0,), (3,), (6,), (9,)]
    with Producer({"bootstrap.servers": target.servers, "transactional.id": topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, json.dumps({"id": 99}), "99").result(120)
        with target.task(topic) as task:
            task.start()
            assert not any(task.step() for _ in range(3)), "an open transaction is not read"
        producer.commit_transaction()
    target.drain(topic, end + 2)
    assert (99,) in target.execute("select id from items")


def test_a_truncate_between_several_partitions_is_a_bad_record(target: Target, topic: str, admin: Admin) -> None:
    """Nobody can say which rows of the other partitions were there before it."""
    admin.create_partitions({topic: 2})
    send(target.servers, topic, (1, {"id": 1}))
    with Producer({"bootstrap.servers": target.servers}) as producer:
        for number in range(2):
            producer.send(topic, None, "{}", partition=number, headers={"op": "t"})
    with target.task(topic) as task, pytest.raises(BadRecord, match="only topics with one partition can carry it"):
        task.run(lambda: False)
    assert target.execute("select * from items") == []


def test_offsets_that_compaction_has_taken_away_are_skipped(target: Target, admin: Admin, topic: str) -> None:
    compacted = f"{topic}-compacted"
    configs = {"cleanup.policy": "compact", "segment.ms": "50", "min.cleanable.dirty.ratio": "0.01"}
    admin.create_topics([NewTopic(compacted, 1, 1, configs=configs)])
    stored = send(target.servers, compacted, *((n % 3, {"id": n % 3, "amount": n}) for n in range(10)))
    target.drain(compacted, stored)
    end = send(target.servers, compacted, *((n % 3, {"id": n % 3, "amount": n}) for n in range(10, 40)), (1, None))

    def left() -> list[int]:
        nonlocal end
        end = send(target.servers, compacted, (7, {"id": 7, "amount": end}))  # the newest segment is not compacted
        return [record.offset for record in read_from_beginning(target.servers, compacted)]

    wait_until(lambda: stored not in left())
    target.drain(compacted, end)
    assert target.execute("select id, amount from items order by id") == [(0, 39), (2, 38), (7, end - 1)]


def read_from_beginning(servers: str, topic: str) -> list[Any]:
    place = TopicPartition(topic, 0)
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        found: list[Any] = []
        while consumer.position(place) < end:
            found += consumer.poll(timeout_ms=500)
    return found


@pytest.mark.parametrize("point", [point if point in ("sink.after_rows", "sink.after_offsets", "sink.after_commit")
                                   else pytest.param(point, marks=pytest.mark.long) for point in POINTS])  # fmt: skip
def test_a_kill_at_any_point_leaves_each_row_once(target: Target, topic: str, point: str) -> None:
    end = send(target.servers, topic, *((None, {"n": n, "source": point}) for n in range(25)))
    nth = 1 if "claim" in point else 2

    def run() -> None:
        target.drain(topic, end, table="events", mode="append")

    assert dying_at(point, run, nth).wait() == -signal.SIGKILL
    assert Child(run).wait() == 0
    assert sorted(target.execute("select n from events")) == [(n,) for n in range(25)]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 13))])
def test_kills_at_random_leave_the_committed_stream(target: Target, topic: str, seed: int) -> None:
    dice = random.Random(seed)
    expected: dict[int, int] = {}
    with Producer({"bootstrap.servers": target.servers, "transactional.id": topic}) as producer:
        producer.init_transactions()
        for number in range(60):
            producer.begin_transaction()
            changes = {dice.randrange(20): dice.choice([None, number]) for _ in range(dice.randrange(1, 6))}
            for key, amount in changes.items():
                value = None if amount is None else json.dumps({"id": key, "amount": amount})
                producer.send(topic, value, json.dumps(key))
            if dice.random() < 0.3:
                producer.abort_transaction()
                continue
            producer.commit_transaction()
            expected |= changes
    end = end_of(target.servers, topic)
    kills = 0
    while True:
        child = dying_at_random(POINTS, 0.07, dice.randrange(10**9), lambda: target.drain(topic, end))
        code = child.wait()
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kills += 1
        assert kills < 200
    assert kills, "the seed should kill at least once"
    wanted = sorted((key, amount) for key, amount in expected.items() if amount is not None)
    assert target.execute("select id, amount from items order by id") == wanted


def test_a_paused_owner_is_fenced_when_it_goes_on(target: Target, topic: str) -> None:
    """Rows are appended: an upsert would hide that they were written twice."""
    end = send(target.servers, topic, *((None, {"n": n, "source": "paused"}) for n in range(5)))

    def stopped_after_read() -> None:
        failpoints.arm("sink.after_read", failpoints.on_nth_hit(1, stop_self))
        with pytest.raises((Fenced, psycopg.OperationalError), match=r"has taken over|terminat"):
            target.drain(topic, end + 100, table="events", mode="append")

    old = Child(stopped_after_read)
    wait_until(lambda: Path(f"/proc/{old.pid}/stat").read_text().split(")")[1].split()[0] == "T")
    target.drain(topic, end, table="events", mode="append")
    old.signal(signal.SIGCONT)
    assert old.wait() == 0
    assert target.execute("select count(*) from events where source = 'paused'") == [(5,)]


@pytest.mark.parametrize("point", [pytest.param("sink.after_rows", marks=pytest.mark.long), "sink.after_offsets"])
def test_an_owner_that_is_paused_in_its_transaction_does_not_hold_the_next_one_up(
    point: str, database: str, servers: str, topic: str
) -> None:
    target = Target(PostgresSink, database, servers, topic)
    end = send(servers, topic, *((n, {"id": n}) for n in range(5)))

    def run_and_pause() -> None:
        failpoints.arm(point, failpoints.on_nth_hit(1, stop_self))
        given = {"name": topic, "url": database, "topics": topic, "table": "items"}
        kind = PostgresSinkKind(sink_settings(given, {"bootstrap.servers": servers}))
        connector = SupervisedConnector(kind, lambda status: None)
        connector.start()
        assert connector.join(300)
        assert "has taken over" in connector.status.error, connector.status
        assert connector.status.progress.records == 0

    old = Child(run_and_pause)
    wait_until(lambda: Path(f"/proc/{old.pid}/stat").read_text().split(")")[1].split()[0] == "T")
    newer = Child(lambda: target.drain(topic, end))
    assert newer.wait(300) == 0
    old.signal(signal.SIGCONT)
    assert old.wait() == 0
    assert target.execute("select count(*) from items") == [(5,)]


def test_an_idle_owner_notices_that_it_was_replaced(
    target: Target, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncelog.connect.sink_task.LOOK_AROUND_S", 0.0)
    with target.task(topic) as old:
        old.start()
        assert not old.step()
        if target.kind is SqliteSink:
            with target.task(topic) as newer:
                newer.start()
        else:
            target.execute("update oncelog_sink_offsets set owner = owner + 1")
        with pytest.raises(Fenced):
            old.step()


def test_an_old_instance_that_reconnects_does_not_take_over_again(target: Target, topic: str) -> None:
    send(target.servers, topic, (1, {"id": 1}))
    old = Instance()
    with target.task(topic, old) as first:
        first.start()
    with target.task(topic, old) as again:
        again.start()  # nobody else has been here
    with target.task(topic) as newer:
        newer.start()
        with target.task(topic, old) as once_more, pytest.raises(Fenced):
            once_more.start()
        assert newer.step()


def test_a_record_that_the_table_refuses_stops_the_sink_and_is_named(target: Target, topic: str) -> None:
    end = send(target.servers, topic, (1, {"id": 1, "amount": 1}), (2, {"id": 2, "amount": -1}), (3, {"id": 3}))
    with pytest.raises(BadRecord, match="offset 1 cannot be written"):
        target.drain(topic, end)
    assert target.execute("select id from items") == []
    assert target.offsets(topic) == {0: 0}


GUARD = """
    create function guard() returns trigger language plpgsql as $$ begin
        if new.amount = 13 then raise exception 'no thirteens'; end if;
        if new.amount = 14 then raise exception 'no fourteens' using errcode = 'SH001'; end if;
        if new.amount = 15 then assert false, 'no fifteens'; end if;
        return new;
    end $$;
    create trigger guard before insert or update on items for each row execute function guard();
"""
LONG_NAMES = "create index on items (name)"
POISON = [
    (GUARD, {"amount": 13}, "no thirteens"),
    (GUARD, {"amount": 14}, "no fourteens"),
    (GUARD, {"amount": 15}, "no fifteens"),
    (LONG_NAMES, {"name": "".join(map(chr, range(256, 5256)))}, "index row"),
    ("", {"name": "a\0b"}, "NUL"),
    ("", {"amount": 10**30}, "out of range"),
]


@pytest.mark.parametrize(("made", "fields", "problem"), POISON, ids=[problem for *_, problem in POISON])
def test_what_the_database_says_of_a_row_is_the_fault_of_its_record(
    made: str, fields: dict[str, Any], problem: str, database: str, servers: str, topic: str
) -> None:
    target = Target(PostgresSink, database, servers, topic)
    target.execute(made or "select 1")
    end = send(servers, topic, (1, {"id": 1}), (2, {"id": 2, **fields}), (3, {"id": 3}))
    with pytest.raises(BadRecord, match=f"offset 1 cannot be written: .*{problem}"):
        target.drain(topic, end)
    assert target.drain(topic, end, errors="dead-letters").progress.dead_letters == 1
    assert target.execute("select id from items order by id") == [(1,), (3,)]
    assert target.execute("select record_offset from oncelog_dead_letters") == [(1,)]


def test_a_view_and_a_policy_object_to_records_and_not_to_the_sink(
    database: str, servers: str, topic: str, unique: Callable[[str], str]
) -> None:
    target = Target(PostgresSink, database, servers, topic)
    writer = unique("writer").replace("-", "_")
    target.execute(
        f"create view small as select * from items where amount < 10 with check option; create role {writer} login; "
        f"grant create on schema public to {writer}; grant all on items, small to {writer}; "
        "alter table items enable row level security; create policy p on items using (true) with check (amount < 20)"
    )
    end = send(servers, topic, *((n, {"id": n, "amount": n * 5}) for n in range(1, 6)))
    target.drain(topic, end, table="small", key=["id"], errors="dead-letters")
    assert target.execute("select id from items") == [(1,)]
    target.execute("delete from oncelog_sink_offsets; drop table oncelog_sink_offsets, oncelog_dead_letters")
    target.url = database.replace("test@", f"{writer}@")
    target.drain(topic, end, errors="dead-letters")
    assert target.execute("select id from items order by id") == [(1,), (2,), (3,)]
    letters = target.execute("select record_offset, error from oncelog_dead_letters order by 1")
    assert [offset for offset, _ in letters] == [3, 4] and "row-level security" in letters[0][1]


def test_a_constraint_that_is_checked_at_the_commit_names_the_offsets(database: str, servers: str, topic: str) -> None:
    target = Target(PostgresSink, database, servers, topic)
    target.execute("alter table items add foreign key (amount) references items deferrable initially deferred")
    end = send(servers, topic, (1, {"id": 1, "amount": 2}), (2, {"id": 2}), (3, {"id": 3, "amount": 4}))
    with pytest.raises(BadRecord, match="offsets 0 to 2 can be written, and together they cannot"):
        target.drain(topic, end, errors="dead-letters")
    send(servers, topic, (4, {"id": 4}))
    target.drain(topic, end + 1)


@pytest.mark.parametrize("has_columns", [False, True])
def test_records_that_cannot_be_read_stop_a_sink_behind_the_good_ones_or_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_columns: bool
) -> None:
    monkeypatch.setattr(sink_task, "_has_columns", lambda: has_columns)
    with broker() as process:
        make_poisoned_topic(process, "poisoned")
        target = Target(SqliteSink, str(tmp_path / "target.db"), process.bootstrap_servers, "sink")
        given = {"errors": "dead-letters", "batch_ms": 500}
        with target.task("poisoned", **given) as task, pytest.raises(CorruptBatch, match="offsets 2 to 2"):
            task.run(lambda: False)
        assert target.offsets("poisoned") == {0: 2}, "what is before them is written"
        target.drain("poisoned", 9, corrupt_batches="skip", **given)
        letters = target.execute("select record_offset, record_value from oncelog_dead_letters order by 1")
        assert letters == list(zip([0, 1, 3, 6, 8], READABLE, strict=True))


def test_dead_letters_are_part_of_the_batch(target: Target, topic: str) -> None:
    end = send(target.servers, topic, (1, {"id": 1}), (2, {"id": 2, "amount": -1}), (3, [1]), (4, {"id": 4, "x": 1}),
               (5, {"id": 5}), (None, {"name": "no key"}), headers={"h": "v"})  # fmt: skip

    def run() -> None:
        assert target.drain(topic, end, errors="dead-letters").progress.dead_letters == 4

    assert dying_at("sink.after_dead_letters", run).wait() == -signal.SIGKILL
    assert target.execute("select count(*) from oncelog_dead_letters") == [(0,)]
    assert Child(run).wait() == 0
    assert target.execute("select id from items order by id") == [(1,), (5,)]
    letters = target.execute("select record_offset, error, record_value, headers from oncelog_dead_letters order by 1")
    assert [offset for offset, *_ in letters] == [1, 2, 3, 5]
    assert bytes(letters[0][2]) == b'{"id": 2, "amount": -1}' and letters[0][3] == '[["h", "v"]]'
    assert 'add column "x" bigint' in letters[2][1]
    assert "no value for the key column id" in letters[3][1]


@pytest.mark.parametrize("batch_rows", [1, 100])
def test_a_row_is_not_made_without_the_values_that_its_record_does_not_know(
    target: Target, topic: str, batch_rows: int
) -> None:
    """As of a row whose key changed, or whose former records compaction took away."""
    send(target.servers, topic, ({"id": 1}, {"id": 1, "name": "large", "amount": 1}))
    send(target.servers, topic, ({"id": 1}, {"id": 1, "amount": 2}), headers=[("unchanged", b"name")])
    send(target.servers, topic, ({"id": 1}, None))
    end = send(target.servers, topic, ({"id": 2}, {"id": 2, "amount": 2}), headers=[("unchanged", b"name,elsewhere")])
    with pytest.raises(BadRecord, match=r"offset 3 .*not changed"):
        target.drain(topic, end, batch_rows=batch_rows)
    target.execute("insert into items (id, name) values (2, 'large')")
    target.drain(topic, end, batch_rows=batch_rows)
    assert target.execute("select id, name, amount from items") == [(2, "large", 2)]
    end = send(target.servers, topic, ({"id": 3}, {"id": 3, "amount": 3}), headers=[("unchanged", b"elsewhere")])
    target.drain(topic, end, batch_rows=batch_rows)
    assert target.execute("select id from items order by id") == [(2,), (3,)]


def test_a_tombstone_with_a_plain_text_for_a_key_deletes_its_row(target: Target, topic: str) -> None:
    """Also if it looks like a number that is another one, or none."""
    keys = ["12345e67", "1234e567", "1.0", "NaN", "007", "7", "abc"]
    target.execute("create table codes (code text primary key)")
    with Producer({"bootstrap.servers": target.servers}) as producer:
        for key in keys:
            producer.send(topic, json.dumps({"code": key}), key)
        for key in keys:
            producer.send(topic, None, key)
    target.drain(topic, end_of(target.servers, topic), table="codes", batch_rows=7)
    assert target.execute("select * from codes") == []


def test_a_topic_that_was_made_again_is_refused(target: Target, topic: str, admin: Admin) -> None:
    target.drain(topic, send(target.servers, topic, *((n, {"id": n}) for n in range(3))))
    with target.task(topic) as running:
        running.start()
        admin.delete_topics([topic])
        wait_until(lambda: topic not in admin.list_topics())
        admin.create_topics([NewTopic(topic, 1, 1)])
        send(target.servers, topic, *((n, {"id": n, "name": "other"}) for n in range(9)))
        with pytest.raises(Refused, match="deleted and made again"):
            running.run(lambda: target.offsets(topic) == {0: 9})
    with target.task(topic) as task, pytest.raises(Refused, match="deleted and made again"):
        task.start()
    assert target.execute("select count(*) from items where name = 'other'") == [(0,)]


def test_offsets_that_retention_took_are_refused_and_named(target: Target, topic: str, admin: Admin) -> None:
    target.drain(topic, send(target.servers, topic, (1, {"id": 1})))
    send(target.servers, topic, *((n, {"id": n}) for n in range(9)))
    admin.delete_records({TopicPartition(topic, 0): 5})
    with (
        target.task(topic) as task,
        pytest.raises(Refused, match="next offset to read is 1, but the topic begins at 5"),
    ):
        task.start()


def test_partitions_that_are_added_are_read_from_their_beginning(target: Target, topic: str, admin: Admin) -> None:
    with target.task(topic, start="latest") as task:
        task.start()
        admin.create_partitions({topic: 3})
        with Producer({"bootstrap.servers": target.servers}) as producer:
            for number in range(3):
                producer.send(topic, json.dumps({"id": number}), "1", partition=number)
        task.run(lambda: target.offsets(topic) == {0: 1, 1: 1, 2: 1})
    assert target.execute("select id from items order by id") == [(0,), (1,), (2,)]


@pytest.mark.long
def test_a_missing_table_or_key_is_refused_with_what_to_do(target: Target, topic: str) -> None:
    end = send(target.servers, topic, (1, {"n": 1}))
    with pytest.raises(Refused, match="there is no table nowhere"):
        target.drain(topic, end, table="nowhere")
    with pytest.raises(Refused, match="no primary key"):
        target.drain(topic, end, table="events")


def test_a_connection_that_is_cut_during_commit_is_resolved_by_the_stored_offset(database: str, servers: str,
                                                                                 topic: str) -> None:  # fmt: skip
    target = Target(PostgresSink, database, servers, topic)
    end = send(servers, topic, *((None, {"n": n, "source": "x"}) for n in range(5)))
    instance = Instance()

    def cut() -> None:
        target.execute("select pg_terminate_backend(pid) from pg_stat_activity "
                       f"where application_name = 'oncelog-connect-{topic}'")  # fmt: skip

    failpoints.arm("sink.after_offsets", failpoints.on_nth_hit(1, cut))
    with (
        target.task(topic, instance, table="events", mode="append") as task,
        pytest.raises(psycopg.OperationalError),
    ):
        task.run(lambda: False)
    with target.task(topic, instance, table="events", mode="append") as task:
        task.run(lambda: target.offsets(topic) == {0: end})
    assert target.execute("select n from events order by n") == [(n,) for n in range(5)]


KEY = Schema(json.dumps({"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}))
ITEM = Schema(
    json.dumps(
        {
            "type": "record",
            "name": "Item",
            "fields": [
                {"name": "id", "type": "long"},
                {"name": "name", "type": ["null", "string"], "default": None},
                {"name": "amount", "type": ["null", "long"], "default": None},
            ],
        }
    )
)


def test_records_with_a_schema_are_written_and_those_without_one_are_bad(target: Target, topic: str) -> None:
    with serving_registry(target.servers, f"{topic}-schemas") as registry:
        value, key = Serializer(RegistryClient(registry), ITEM), Serializer(RegistryClient(registry), KEY, is_key=True)
        settings = {"bootstrap.servers": target.servers}
        with Producer(settings, key_serializer=key, value_serializer=value) as producer:
            producer.send(topic, {"id": 1, "name": "a", "amount": 1}, {"id": 1})
            producer.send(topic, {"id": 1, "name": "b"}, {"id": 1}, headers=[("unchanged", b"amount")])
            producer.send(topic, {"id": 2}, {"id": 2})
            producer.send(topic, None, {"id": 2})
        end = send(target.servers, topic, (3, {"id": 3}))
        target.drain(topic, end, schema_registry=registry, errors="dead-letters")
    assert target.execute("select id, name, amount from items") == [(1, "b", 1)]
    [(error, kept)] = target.execute("select error, record_value from oncelog_dead_letters")
    assert "its value cannot be read by its schema" in error
    assert bytes(kept) == b'{"id": 3}'


def test_a_sink_waits_for_its_registry(target: Target, topic: str) -> None:
    """It is a temporary error: nothing is written, nothing is given up."""
    with serving_registry(target.servers, f"{topic}-schemas") as registry:
        frame = Serializer(RegistryClient(registry), ITEM)(topic, {"id": 1})
    with Producer({"bootstrap.servers": target.servers}) as producer:
        producer.send(topic, frame)
    with pytest.raises(ConnectionError), target.task(topic, schema_registry=registry, errors="dead-letters") as task:
        task.run(lambda: target.offsets(topic) == {0: 1})
    assert target.offsets(topic) == {0: 0}
    assert target.execute("select * from oncelog_dead_letters") == []
