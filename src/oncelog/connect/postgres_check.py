"""What a source needs of PostgreSQL, and the SQL for what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg

from oncelog.connect.kinds import Finding
from oncelog.connect.pgoutput import lsn_text
from oncelog.connect.postgres_source import PostgresSource
from oncelog.connect.settings import SourceSettings


def check_source(settings: SourceSettings) -> Iterator[Finding]:
    try:
        connection = psycopg.connect(settings.url, autocommit=True)
    except psycopg.OperationalError as error:
        yield Finding(False, f"the database does not let us in: {error}")
        return
    with connection:
        yield Finding(True, f"the database lets us in: PostgreSQL {connection.info.server_version // 10000}")
        found = list(_check_server(connection, settings))
        yield from found
    if all(finding.is_met for finding in found):
        with closing(PostgresSource(settings, lambda topic: 1)) as source:
            yield from _check_tables(source)


def _check_server(connection: psycopg.Connection[Any], settings: SourceSettings) -> Iterator[Finding]:
    def value(query: str, *values: Any) -> Any:
        row = connection.execute(query.encode(), values or None).fetchone()
        return None if row is None else row[0]

    level = value("show wal_level")
    fix = "" if level == "logical" else "alter system set wal_level = logical; -- and restart the server"
    yield Finding(level == "logical", f"wal_level is {level}", fix)
    may = value("select rolreplication or rolsuper from pg_roles where rolname = current_user")
    user = value("select current_user")
    yield Finding(
        bool(may), f"user {user} may {'' if may else 'not '}replicate", "" if may else f"alter role {user} replication;"
    )
    publication = settings.publication
    exists = value("select true from pg_publication where pubname = %s", publication)
    text = f"publication {publication} {'is there' if exists else 'does not exist'}"
    yield Finding(bool(exists), text, "" if exists else f'create publication "{publication}" for table ...;')
    slot = value(
        "select coalesce(confirmed_flush_lsn::text, '?') from pg_replication_slots where slot_name = %s", settings.slot
    )
    free = value("select current_setting('max_replication_slots')::int - count(*) from pg_replication_slots")
    if slot is not None:
        yield Finding(True, f"slot {settings.slot} is at {slot}")
    else:
        fix = "" if free > 0 else "alter system set max_replication_slots = 20; -- and restart the server"
        yield Finding(free > 0, f"slot {settings.slot} will be made at the first start; {free} are free", fix)


def _check_tables(source: PostgresSource) -> Iterator[Finding]:
    tables = source.published()
    if not tables:
        publication = source.settings.publication
        yield Finding(False, "the publication has no tables", f'alter publication "{publication}" add table ...;')
    for relation, _ in tables:
        name = f"{relation.schema}.{relation.name}"
        has_key = any(column.is_identity for column in relation.columns)
        text = f"table {name} has {'a' if has_key else 'no'} primary key"
        yield Finding(has_key, text, "" if has_key else f"alter table {name} add primary key (...);")
    yield Finding(True, f"the server's log is at {lsn_text(source.current_position())}")
