"""What a source needs of PostgreSQL, and the SQL for what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

import psycopg

from oncelog.client import KafkaError
from oncelog.connect.change_format import identity_columns
from oncelog.connect.errors import ConnectorStopped, in_one_line
from oncelog.connect.finding import Finding
from oncelog.connect.identifiers import quoted
from oncelog.connect.outbox import NEEDED
from oncelog.connect.pgoutput import Relation, lsn_text
from oncelog.connect.postgres_rights import Rights
from oncelog.connect.postgres_source import PostgresSource
from oncelog.connect.settings import SourceSettings
from oncelog.connect.source import Stored
from oncelog.connect.source_resume import check_slot, decide

_RESTART: Final = "-- and restart the server"
_MORE: Final = 10


ReadStored = Callable[[], Stored | None]


def check_source(settings: SourceSettings, read_stored: ReadStored | None = None) -> Iterator[Finding]:
    """`read_stored` asks for the position in the log. Without it the position is not checked."""
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
                yield from _check_slot(source, read_stored)
    except ConnectorStopped as error:
        yield Finding(False, error.problem, error.fix)
    except KafkaError as error:
        yield Finding(False, f"the stored position cannot be read: {error}")
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
        yield Finding(free > 0, f"slot {settings.slot} is not there yet; {free} can be made", fix)
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
            yield from _check_outbox(relation)
        elif not key:
            fix = f"alter table {quoted(relation.schema, relation.name)} add primary key (...);"
            yield Finding(False, f"table {name} has no primary key", fix)
        else:
            is_by_index = relation.identity == "i" and key == identity_columns(relation.columns)
            by = "the index of its replica identity" if is_by_index else "its primary key"
            yield Finding(True, f"table {name} is keyed by {by}, {', '.join(key)}")
        yield from rights.read_all(name)
    for require in (source.require_outbox, source.tables.require_topics):
        try:
            require()
        except ConnectorStopped as error:
            yield Finding(False, error.problem, error.fix)


def _check_outbox(relation: Relation) -> Iterator[Finding]:
    missing = [name for name in NEEDED if name not in {column.name for column in relation.columns}]
    if not missing:
        yield Finding(True, f"table {relation.full_name} is the outbox")
        return
    added = ", ".join(f"add column {name} text" for name in missing)
    yield Finding(
        False,
        f"table {relation.full_name} is the outbox, and has no {' and no '.join(missing)}, or does not publish it",
        f"alter table {quoted(relation.schema, relation.name)} {added};",
    )


def _check_slot(source: PostgresSource, read_stored: ReadStored | None) -> Iterator[Finding]:
    settings, server = source.settings, source.server()
    if server.slot is not None:
        check_slot(settings.slot, server.slot)
        yield Finding(True, f"slot {settings.slot} is at {lsn_text(server.slot.confirmed_lsn)}")
    # A connector that runs moves first what is stored, then the slot, and never beyond the server's log: so they are
    # read here in the other order.
    stored = None if read_stored is None else read_stored()
    server = server._replace(wal_lsn=source.current_position())
    yield Finding(True, f"the server's log is at {lsn_text(server.wal_lsn)}")
    if read_stored is not None:
        is_new = decide(settings.name, settings.slot, stored, server, settings.accept_timeline).snapshot is not None
        place = "" if stored is None else lsn_text(stored.position)
        yield Finding(True, "the next start takes a snapshot" if is_new else f"the next start goes on behind {place}")
