"""`oncelog connect check` says what a run would fail by, with the SQL that mends it; and the SQL does."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oncelog.client import Admin, NewTopic
from oncelog.connect.errors import Refused
from oncelog.connect.finding import Finding
from oncelog.connect.kinds import Kind, PostgresSinkKind, PostgresSourceKind, SqliteSinkKind
from oncelog.connect.postgres_check import check_source
from oncelog.connect.postgres_source import PostgresSource
from oncelog.connect.progress import Progress
from oncelog.connect.settings import ConnectorConfigError, SourceSettings, sink_settings, source_settings
from oncelog.connect.supervisor import SupervisedConnector
from tests.connect.postgres import postgres_server
from tests.connect.test_sinks import send
from tests.connect.topic_reader import read_all
from tests.waiting import wait_until


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def wal_senders(url: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute("select pid from pg_stat_activity where backend_type = 'walsender'").fetchall()


def missing(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.is_met]


def mended(url: str, check: Callable[[], Iterable[Finding]]) -> list[str]:
    """Follow the advice until there is none."""
    fixes: list[str] = []
    while found := missing(check()):
        assert all(finding.fix for finding in found), found
        fixes += [finding.fix for finding in found]
        assert len(fixes) < 20, fixes
        execute(url, *(finding.fix for finding in found))
    return fixes


def run(kind: Kind) -> None:
    connector = SupervisedConnector(kind, lambda status: None, until_current=True)
    connector.start()
    assert connector.join(300)
    assert connector.status.state == "ended", connector.status


@pytest.fixture
def role(database: str, unique: Callable[[str], str]) -> str:
    """A user who may log in."""
    name = unique("Role")
    execute(database, f'create role "{name}" login', "revoke temporary on database "
            f'"{database.rpartition("/")[2]}" from public', "revoke all on schema public from public")  # fmt: skip
    return name


def as_role(url: str, role: str) -> str:
    return url.replace("test@", f"{role}@")


def test_a_source_is_told_what_its_user_may_not_read(
    database: str, servers: str, role: str, unique: Callable[[str], str]
) -> None:
    execute(
        database,
        'create schema "My shop"',
        'create table "My shop".orders (id int primary key, n int)',
        'insert into "My shop".orders values (1, 1), (2, 2)',
        'alter table "My shop".orders enable row level security',
        'create policy p on "My shop".orders using (n = 1)',
        "create publication p for all tables",
    )
    given = {"name": unique("rights"), "url": as_role(database, role), "publication": "p"}
    settings = source_settings(given, {"bootstrap.servers": servers})
    fixes = mended(database, lambda: check_source(settings))
    assert fixes == [
        f'alter role "{role}" replication;',
        f'grant usage on schema "My shop" to "{role}";',
        f'grant select on "My shop"."orders" to "{role}";',
        f'alter role "{role}" bypassrls;',
    ]
    execute(database, f'alter role "{role}" nobypassrls')
    connector = SupervisedConnector(PostgresSourceKind(settings), lambda status: None, until_current=True)
    connector.start()
    assert connector.join(300)
    assert connector.status.state == "stopped" and "row-level security" in connector.status.error
    execute(database, f'alter role "{role}" bypassrls')
    run(PostgresSourceKind(settings))


def test_a_source_may_have_the_right_to_some_columns_only(
    database: str, role: str, servers: str, unique: Callable[[str], str]
) -> None:
    execute(database, "create table t (id int primary key, secret text)", "insert into t values (1, 'x')",
            "create publication p for table t (id)", f'alter role "{role}" replication',
            f'grant usage on schema public to "{role}"', f'grant select (id) on t to "{role}"')  # fmt: skip
    name = unique("columns")
    given = {"name": name, "url": as_role(database, role), "publication": "p", "topic": f"{name}.{{table}}"}
    kind = PostgresSourceKind(source_settings(given, {"bootstrap.servers": servers}))
    assert not missing(kind.check())
    run(kind)
    assert [record.value for record in read_all(servers, f"{name}.t")] == [{"id": 1}]


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_a_sink_is_told_what_its_user_may_not_write(
    mode: str, database: str, servers: str, admin: Admin, role: str, unique: Callable[[str], str]
) -> None:
    topic = unique("rights")
    admin.create_topics([NewTopic(topic, 1, 1)])
    send(servers, topic, (1, {"id": 1, "n": 1}))
    execute(database, "create schema shop", "create table shop.items (id int primary key, n int)")
    given = {"name": topic, "url": as_role(database, role), "topics": topic, "table": "shop.items", "mode": mode}
    kind = PostgresSinkKind(sink_settings(given, {"bootstrap.servers": servers}))
    # A role without any schema of its own is to make one, which is named as the role.
    execute(database, f'alter role "{role}" set search_path = shop')
    rights = "insert" if mode == "append" else "select, insert, update, delete"
    assert set(mended(database, kind.check)) >= {
        f'grant usage on schema "shop" to "{role}";',
        f'grant {rights} on "shop"."items" to "{role}";',
        f'grant create on schema "shop" to "{role}";',
    }
    run(kind)
    execute(database, f'revoke insert, update on shop.oncelog_dead_letters from "{role}"',
            'alter table shop.oncelog_sink_offsets owner to test; alter table shop.oncelog_dead_letters owner to test',
            f'revoke create on schema shop from "{role}"')  # fmt: skip
    assert len(mended(database, kind.check)) == 2
    run(kind)


@pytest.mark.parametrize("kind", [SqliteSinkKind, PostgresSinkKind], ids=["sqlite", "postgres"])
def test_a_key_needs_a_unique_index_of_its_columns(
    kind: type[Kind], request: pytest.FixtureRequest, tmp_path: Path, servers: str, admin: Admin,
    unique: Callable[[str], str],
) -> None:  # fmt: skip
    is_postgres = kind is PostgresSinkKind
    url = request.getfixturevalue("database") if is_postgres else str(tmp_path / "target.db")
    topic = unique("keys")
    admin.create_topics([NewTopic(topic, 1, 1)])
    send(servers, topic, (1, {"a": 1, "b": 1}))

    def do(sql: str) -> None:
        if is_postgres:
            execute(url, sql)
        else:
            with sqlite3.connect(url) as connection:
                connection.execute(sql)

    def sink(*key: str) -> Any:
        given = {"name": topic, "url": url, "topics": topic, "table": "items", "key": list(key)}
        return kind(sink_settings(given, {"bootstrap.servers": servers}))  # type: ignore[call-arg]

    [finding] = missing([*sink("a").check()])
    if is_postgres:
        assert finding.fix == 'create table "items" (..., primary key ("a"));'
    else:
        assert f"there is no file {url}" in finding.text and not Path(url).exists()
    do("create table items (a int, b int, c int)")
    do("create unique index partial on items (a) where b > 0")
    do("create unique index of_an_expression on items (abs(a))")
    do("create unique index wider on items (a, c)")
    do("create index plain on items (a)")
    [finding] = missing([*sink().check()])
    assert finding.fix == 'alter table "items" add primary key (...);'
    [finding] = missing([*sink("x").check()])
    assert "no column x" in finding.text
    [finding] = missing([*sink("a").check()])
    assert finding.fix == 'create unique index "items_a_key" on "items" ("a");'
    connector = SupervisedConnector(sink("a"), lambda status: None, until_current=True)
    connector.start()
    assert connector.join(300)
    assert connector.status.state == "stopped" and finding.fix in connector.status.error, connector.status
    do(finding.fix)
    run(sink("a"))
    assert not missing([*sink("c", "a").check()])


def test_what_is_used_up_is_said_with_the_setting() -> None:
    with postgres_server(settings={"max_wal_senders": 1, "max_replication_slots": 1}) as server:
        url = server.create_database("shop")
        execute(url, "create table t (id int primary key)", "create publication p for table t")
        settings = source_settings({"name": "c", "url": url, "publication": "p"}, {})
        assert not missing(check_source(settings))
        wait_until(lambda: not wal_senders(url), "the server still has the connection of the check")
        with psycopg.connect(url, autocommit=True, replication="database") as other:
            other.execute("CREATE_REPLICATION_SLOT other LOGICAL pgoutput")
            fixes = [finding.fix for finding in missing(check_source(settings))]
            assert fixes == [
                "alter system set max_replication_slots = 11; -- and restart the server",
                "alter system set max_wal_senders = 11; -- and restart the server",
            ]


@pytest.mark.parametrize("place", ["_check_server", "PostgresSource", "_check_tables", "_check_slot"])
def test_a_database_that_goes_away_during_a_check_is_a_finding(
    place: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(database, "create table t (id int primary key)", "create publication p for table t")

    def fail(*_: object) -> None:
        raise psycopg.OperationalError("the connection is\nlost")

    monkeypatch.setattr(f"oncelog.connect.postgres_check.{place}", fail)
    [finding] = missing(check_source(source_settings({"name": "c", "url": database, "publication": "p"}, {})))
    assert "the connection is lost" in finding.text


def outbox(url: str, name: str) -> SourceSettings:
    return source_settings({"name": "c", "url": url, "publication": "p", "outbox_table": name}, {})


def test_an_outbox_is_named_with_its_schema_and_is_published(database: str) -> None:
    """One that is not found would have its events copied as plain rows."""
    with pytest.raises(ConnectorConfigError, match="name of the schema too"):
        outbox(database, "outbox")
    execute(database, "create table t (id int primary key)", "create publication p for table t",
            "create table outbox (aggregatetype text, aggregateid text, payload text)")  # fmt: skip
    settings = outbox(database, "public.outbox")
    source = PostgresSource(settings, lambda topic: 1)
    with pytest.raises(Refused, match="has no such table: alter publication"):
        source.resume(None)
    source.close()
    assert mended(database, lambda: check_source(settings)) == ['alter publication "p" add table "public"."outbox";']


def test_tables_whose_names_no_topic_can_have_do_not_meet_in_one(database: str) -> None:
    """A sink would take their rows for rows of one table."""
    execute(database, 'create table "a b" (id int primary key)', "create table a_b (id int primary key)",
            'create publication p for table "a b", a_b')  # fmt: skip
    given = {"name": "c", "url": database, "publication": "p"}
    settings = source_settings(given, {})
    [finding] = missing(check_source(settings))
    assert "'public.a b' and 'public.a_b' would be one topic" in finding.text
    with closing(PostgresSource(settings, lambda topic: 1)) as source, pytest.raises(Refused, match="one topic"):
        source.resume(None)
    assert not missing(check_source(source_settings({**given, "topic": "all"}, {}))), "they may, if that is wanted"


def test_messages_that_an_old_server_does_not_send_are_not_waited_for(database: str) -> None:
    settings = source_settings({"name": "c", "url": database, "publication": "p", "outbox_prefix": "events"}, {})
    with closing(PostgresSource(settings, lambda topic: 1)) as source:
        source.require_outbox()
        source._server_version = 130010
        with pytest.raises(Refused, match="needs PostgreSQL 14"):
            source.require_outbox()


def test_an_outbox_without_its_columns_is_a_finding(database: str) -> None:
    execute(database, "create table outbox (id int primary key, payload text)", "create publication p for table outbox")
    assert mended(database, lambda: check_source(outbox(database, "public.outbox"))) == [
        'alter table "public"."outbox" add column aggregatetype text, add column aggregateid text;'
    ]


def test_a_position_that_a_run_would_refuse_is_a_finding(
    database: str, servers: str, unique: Callable[[str], str]
) -> None:
    """And what it would go on with is not, before and between runs."""
    name = unique("check")
    slot = f"oncelog_{name.replace('-', '_')}"
    execute(database, "create table t (id int primary key)", "create publication p for table t")
    given = {"name": name, "url": database, "publication": "p", "topic": f"{name}.{{table}}"}

    def made() -> PostgresSourceKind:
        return PostgresSourceKind(source_settings(given, {"bootstrap.servers": servers}))

    assert [finding.text for finding in made().check()][-1] == "the next start takes a snapshot"
    run(made())
    execute(database, "insert into t values (1)")
    findings = [*made().check()]
    assert not missing(findings) and "the next start goes on behind" in findings[-1].text
    execute(database, f"select pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    [finding] = missing(made().check())
    assert "somebody else has moved it" in finding.text
    execute(database, f"select pg_drop_replication_slot('{slot}')")
    [finding] = missing(made().check())
    assert f"the replication slot {slot} is gone" in finding.text and "new snapshot" in finding.text


def test_the_slot_of_something_else_is_a_finding(database: str, unique: Callable[[str], str]) -> None:
    slot = unique("slot").replace("-", "_")
    elsewhere = database.rpartition("/")[0] + "/postgres"
    execute(database, "create table t (id int primary key)", "create publication p for table t")
    execute(elsewhere, f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    settings = source_settings({"name": "c", "url": database, "publication": "p", "slot": slot}, {})
    [finding] = missing(check_source(settings))
    assert "in the database postgres, not" in finding.text
    execute(elsewhere, f"select pg_drop_replication_slot('{slot}')")


def test_a_table_with_columns_that_its_primary_key_only_includes(
    database: str, servers: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    topic = unique("included")
    admin.create_topics([NewTopic(topic, 1, 1)])
    execute(database, "create table items (id int, n int, primary key (id) include (n))")
    given = {"name": topic, "url": database, "topics": topic, "table": "items"}
    kind = PostgresSinkKind(sink_settings(given, {"bootstrap.servers": servers}))
    assert "table items can be written, by id" in [finding.text for finding in kind.check()]
    progress = Progress()
    with kind.task(progress) as task:
        task.start()
