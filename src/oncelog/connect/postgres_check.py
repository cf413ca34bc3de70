"""What a source needs of PostgreSQL, and the SQL for what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import psycopg

from oncelog.connect.change_format import identity_columns
from oncelog.connect.errors import ConnectorStopped, in_one_line
from oncelog.connect.finding import Finding
from oncelog.connect.identifiers import quoted
from oncelog.connect.pgoutput import lsn_text
from oncelog.connect.postgres_rights import Rights
from oncelog.connect.postgres_source import PostgresSource
from oncelog.connect.settings import SourceSettings
from oncelog.connect.source_resume import check_slot

_RESTART: Final = "-- and restart the server"
_MORE: Final = 10


def check_source(settings: SourceSettings) -> Iterator[Finding]:
    try:
        connection = psycopg.connect(settings.url, autocommit=True)
    except psycopg.OperationalError as error:
        yield Finding(False, f"the database does not let us in: {in_one_line(error)}")
        return
    try:
        with connection:
            yield Finding(True, f"the database lets us in: PostgreSQL {connection.info.server_version // 10000}")
            found = list(_check_server(connection, settings))
            yield from found
            if not all(finding.is_met for finding in found):
                return
            with closing(PostgresSource(settings, lambda topic: 1)) as source:
                yield from _check_tables(source, Rights(connection))
                yield from _check_slot(source)
    except ConnectorStopped as error:
        yield Finding(False, error.problem, error.fix)
    except psycopg.Error as error:
        yield Finding(False, f"the database refuses what the connector begins with: {in_one_line(error)}")


def _check_server(connection: psycopg.Connection[Any], settings: SourceSettings) -> Iterator[Finding]:
    def value(query: str, *values: Any) -> Any:
        row = connection.execute(query.encode(), values or None).fetchone()
        return None if row is None else row[0]

    level = value("show wal_level")
    fix = "" if level == "logical" else f"alter system set wal_level = logical; {_RESTART}"
    yield Finding(level == "logical", f"wal_level is {level}", fix)
    may = value("select rolreplication or rolsuper from pg_roles where rolname = current_user")
    user = value("select current_user")
    yield Finding(
        bool(may),
        f"user {user} may {'' if may else 'not '}replicate",
        "" if may else f"alter role {quoted(user)} replication;",
    )
    publication = settings.publication
    exists = value("select true from pg_publication where pubname = %s", publication)
    text = f"publication {publication} {'is there' if exists else 'does not exist'}"
    yield Finding(bool(exists), text, "" if exists else f"create publication {quoted(publication)} for table ...;")
    is_there = value("select true from pg_replication_slots where slot_name = %s", settings.slot)
    if not is_there:
        used = value("select count(*) from pg_replication_slots")
        free = int(value("show max_replication_slots")) - used
        fix = "" if free > 0 else f"alter system set max_replication_slots = {used + _MORE}; {_RESTART}"
        yield Finding(free > 0, f"slot {settings.slot} will be made at the first start; {free} are free", fix)
    # A connector that runs already has one, and gives it to the next.
    if not value("select active from pg_replication_slots where slot_name = %s", settings.slot):
        used = value("select count(*) from pg_stat_replication")
        free = int(value("show max_wal_senders")) - used
        fix = "" if free > 0 else f"alter system set max_wal_senders = {used + _MORE}; {_RESTART}"
        yield Finding(free > 0, f"{free} connections for replication are free", fix)


def _check_tables(source: PostgresSource, rights: Rights) -> Iterator[Finding]:
    tables = source.tables.published()
    publication = quoted(source.settings.publication)
    if not tables:
        yield Finding(False, "the publication has no tables", f"alter publication {publication} add table ...;")
    for relation, _ in tables:
        name = relation.full_name
        key = source.tables.key(relation)
        if name == source.settings.outbox_table:
            yield Finding(True, f"table {name} is the outbox")
        elif not key:
            fix = f"alter table {quoted(relation.schema, relation.name)} add primary key (...);"
            yield Finding(False, f"table {name} has no primary key", fix)
        else:
            is_by_index = relation.identity == "i" and key == identity_columns(relation.columns)
            by = "the index of its replica identity" if is_by_index else "its primary key"
            yield Finding(True, f"table {name} is keyed by {by}, {', '.join(key)}")
        yield from rights.read_all(name)
    try:
        source.require_outbox()
    except ConnectorStopped as error:
        yield Finding(False, error.problem, error.fix)


def _check_slot(source: PostgresSource) -> Iterator[Finding]:
    server = source.server()
    if server.slot is not None:
        check_slot(source.settings.slot, server.slot)
        yield Finding(True, f"slot {source.settings.slot} is at {lsn_text(server.slot.confirmed_lsn)}")
    yield Finding(True, f"the server's log is at {lsn_text(source.current_position())}")
