"""A table to a topic to a table again: PostgreSQL, the log, PostgreSQL; both connectors die at random."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from oncelog.client import BufferExhausted
from oncelog.connect.errors import BadRecord
from oncelog.connect.kinds import Kind, PostgresSinkKind, PostgresSourceKind
from oncelog.connect.postgres_check import check_source
from oncelog.connect.progress import Progress, Status
from oncelog.connect.settings import sink_settings, source_settings
from oncelog.connect.status_topic import StatusWriter, read_status
from oncelog.connect.supervisor import SupervisedConnector
from tests.connect.children import Child, dying_at_random
from tests.connect.postgres import PostgresServer
from tests.registries import serving_registry

POINTS = ["source.after_produce", "source.after_offsets", "source.after_commit", "source.after_confirm",
          "sink.after_read", "sink.after_rows", "sink.after_offsets", "sink.after_commit"]  # fmt: skip
JSON_TEXTS = ['{"x": 1.5}', "[1, null]", '"text"', '"5"', '"{}"', "5", "true"]
KINDS_TABLE = (
    "create table items (id int primary key, b boolean, f float8, n numeric, j jsonb, t timestamptz, a int[], y bytea, "
    "s text)"
)


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def run_until_current(kind: Kind) -> None:
    progress = Progress()
    try:
        with kind.task(progress) as task:
            task.run(lambda: progress.is_current)
    finally:
        kind.close()


def change(dice: random.Random) -> str:
    number = dice.randrange(30)
    values = (
        f"{number}, {dice.choice(['true', 'false', 'null'])}, {dice.random()}, {dice.randrange(10**6)}.50, "
        f"""'{dice.choice(JSON_TEXTS)}', now(), array[1, {number}], '\\x00ff', E'tab\\there \\\\ {number}'"""
    )
    columns = ", ".join(f"{name} = excluded.{name}" for name in "bfnjtays")
    upsert = f"insert into items values ({values}) on conflict (id) do update set {columns}"
    return dice.choice([upsert, upsert, f"delete from items where id = {number}",
                        f"update items set id = id + 100 where id = {number}"])  # fmt: skip


@pytest.mark.parametrize("seed", [7, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(20, 23))])
def test_a_copied_table_is_the_table_whatever_dies(
    seed: int, postgres: PostgresServer, servers: str, unique: Callable[[str], str]
) -> None:
    dice = random.Random(seed)
    name = unique("trip")
    source, target = postgres.create_database(unique("from")), postgres.create_database(unique("to"))
    execute(source, KINDS_TABLE, "create publication p for table items")
    execute(target, KINDS_TABLE)
    client = {"bootstrap.servers": servers}
    given = {"name": f"{name}-in", "url": source, "publication": "p", "topic": f"{name}.{{table}}", "batch_ms": 10}
    sink = {"name": f"{name}-out", "url": target, "topics": f"{name}.items", "table": "items", "batch_rows": 5,
            "batch_ms": 5}  # fmt: skip
    kills = 0
    execute(source, *(change(dice) for _ in range(5)))

    def copy_in() -> None:
        run_until_current(PostgresSourceKind(source_settings(given, client)))

    def copy_out() -> None:
        run_until_current(PostgresSinkKind(sink_settings(sink, client)))

    assert Child(copy_in).wait() == 0
    for _ in range(5):
        execute(source, *(change(dice) for _ in range(dice.randrange(1, 8))))
        for copy in (copy_in, copy_out):
            kills += dying_at_random(POINTS, 0.15, dice.randrange(10**9), copy).wait() == -signal.SIGKILL
    assert Child(copy_in).wait() == 0
    assert Child(copy_out).wait() == 0
    rows = "select * from items order by id"
    assert execute(target, rows) == execute(source, rows) != []
    assert kills


class Copy:
    """A table in two databases, and both connectors."""

    def __init__(self, postgres: PostgresServer, servers: str, name: str, *made: str, **given: str) -> None:
        self.source, self.target = (postgres.create_database(f"{name}-{end}") for end in ("from", "to"))
        for url in (self.source, self.target):
            execute(url, *made)
        execute(self.source, "create publication p for table items")
        client = {"bootstrap.servers": servers}
        self._source = source_settings({"name": f"{name}-in", "url": self.source, "publication": "p",
                                        "topic": f"{name}.{{table}}", **given}, client)  # fmt: skip
        self._sink = sink_settings({"name": f"{name}-out", "url": self.target, "topics": f"{name}.items",
                                    "table": "items", **given}, client)  # fmt: skip

    def run(self) -> None:
        run_until_current(PostgresSourceKind(self._source))
        run_until_current(PostgresSinkKind(self._sink))

    def rows(self, query: str) -> tuple[list[Any], list[Any]]:
        return execute(self.source, query), execute(self.target, query)


ALL_KINDS = """
    create type mood as enum ('sad', 'happy');
    create domain positive as int check (value > 0);
    create table items (id int, name text, m mood, p positive, n numeric(40, 20), ts timestamp, tz timestamptz, d date,
        t time, iv interval, words text[], pairs int[][], y bytea, j json, jb jsonb, u uuid, net inet, r int4range,
        c char(5), bits bit(3), f4 real, f8 float8, pt point, o oid, big bigint, primary key (id, name))
"""


@pytest.mark.parametrize("has_schemas", [False, True])
def test_values_of_all_kinds_are_the_same_in_a_copy(
    has_schemas: bool, postgres: PostgresServer, servers: str, unique: Callable[[str], str]
) -> None:
    name = unique("kinds")
    row = """(%d, 'k"\\', 'happy', 3, 12345678901234567890.12345678901234567890, '2026-01-02 03:04:05.123456',
        '2026-01-02 03:04:05.123456+05', 'infinity', '12:00', '1 year -2 mons 3 days 04:05:06.7',
        '{"a,b",null,"q\\"u"}', '{{1,2},{3,4}}', '\\x00ff5c', '{"a":  1.10, "z":12345678901234567890.123456789}',
        '{"d": 1.10, "e": 123456789012345678901234567890.5, "i": [1e2, "1.10"]}',
        'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '10.0.0.1/8', '[1,5)', 'ab', '101', 0.1, 1e-300, '(1,2)', 4000000000,
        9223372036854775807)"""
    texts = [f"({number}, 'json', '{text}')" for number, text in enumerate(JSON_TEXTS, 10)]
    with serving_registry(servers, f"{name}-schemas") as registry:
        given = {"schema_registry": registry} if has_schemas else {}
        copy = Copy(postgres, servers, name, ALL_KINDS, **given)
        execute(copy.source, f"insert into items values {row % 1}")
        copy.run()
        execute(copy.source, f"insert into items values {row % 2}", "insert into items values (3, 'nulls')",
                f"insert into items (id, name, jb) values {', '.join(texts)}")  # fmt: skip
        copy.run()
    source, target = copy.rows("select items::text from items order by id")
    assert target == source and len(source) == 3 + len(JSON_TEXTS)


@pytest.mark.parametrize("identity", ["default", "full"])
def test_a_large_value_is_copied_or_missed_aloud_when_the_key_of_its_row_changes(
    identity: str, postgres: PostgresServer, servers: str, unique: Callable[[str], str]
) -> None:
    copy = Copy(postgres, servers, unique("large"), "create table items (id int primary key, note text, n int)")
    execute(copy.source, "alter table items alter note set storage external",
            f"alter table items replica identity {identity}",
            "insert into items values (1, repeat('y', 10000), 1), (2, repeat('z', 10000), 1)")  # fmt: skip
    copy.run()
    execute(copy.source, "update items set n = 2 where id = 1")
    copy.run()
    execute(copy.source, "update items set id = 77 where id = 2")
    if identity == "default":
        with pytest.raises(BadRecord, match="replica identity full"):
            copy.run()
        execute(copy.target, "insert into items values (77, repeat('z', 10000))")
    copy.run()
    source, target = copy.rows("select * from items order by id")
    assert target == source


def test_a_check_says_what_is_missing_with_the_sql(database: str) -> None:
    settings = source_settings({"name": "c", "url": database, "publication": "p"}, {})
    [missing] = [finding for finding in check_source(settings) if not finding.is_met]
    assert missing.fix == 'create publication "p" for table ...;'
    execute(database, "create table t (n int)", "create publication p for table t")
    [missing] = [finding for finding in check_source(settings) if not finding.is_met]
    assert missing.fix == 'alter table "public"."t" add primary key (...);'
    execute(database, "alter table t add primary key (n)")
    assert all(finding.is_met for finding in check_source(settings))
    elsewhere = source_settings({"name": "c", "url": "postgresql://127.0.0.1:1/x", "publication": "p"}, {})
    [unreachable] = check_source(elsewhere)
    assert "does not let us in" in unreachable.text


def test_what_connectors_report_can_be_read(database: str, servers: str, unique: Callable[[str], str]) -> None:
    name = unique("status")
    execute(
        database,
        "create table t (n int primary key)",
        "insert into t values (1), (2)",
        "create publication p for table t",
    )
    client = {"bootstrap.servers": servers}
    given = {"name": name, "url": database, "publication": "p", "topic": f"{name}.{{table}}"}
    connector = SupervisedConnector(
        PostgresSourceKind(source_settings(given, client)), lambda status: None, until_current=True
    )
    connector.start()
    assert connector.join(300)
    with StatusWriter(client) as writer:
        writer.write(connector.status)
    [row] = [row for row in read_status(client) if row["connector"] == name]
    assert (row["state"], row["records"], row["error"]) == ("ended", 2, "")
    assert "/" in row["position"]


def test_a_report_that_cannot_be_written_disturbs_nobody(monkeypatch: pytest.MonkeyPatch, servers: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BufferExhausted("no room")

    with StatusWriter({"bootstrap.servers": servers}) as writer:
        monkeypatch.setattr(writer._producer, "send", refuse)
        writer.write(Status("c"))
    with StatusWriter({"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": 200}) as writer:
        writer.write(Status("c"))
