"""The tables of a publication, and their rows as of one moment.

A snapshot that was exported with a slot can be read by several connections at once, each of them a part of a table: the
pages of its file from one number to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import psycopg

from oncelog.connect.change_format import ChangeFormat, Table, Transaction, identity_columns, key_columns
from oncelog.connect.errors import Refused
from oncelog.connect.identifiers import quoted
from oncelog.connect.outbox import OutboxEvent, outbox_event
from oncelog.connect.pgoutput import Column, Relation
from oncelog.connect.settings import SourceSettings
from oncelog.connect.source import SourceRecord
from oncelog.connect.table_schemas import TableSchemas
from oncelog.schemas.registry_client import RegistryClient

PART_INDEX_BITS: Final = 32
"""The header `index` of a row in a part: the number of the part, and so many bits of its place in it."""
SESSION_OPTIONS: Final = (
    "-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC -c extra_float_digits=1 -c bytea_output=hex "
    "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0 -c row_security=off"
)
"""The last one: a snapshot that would lack the rows that a policy hides is refused."""
ENCODING: Final = "utf8"
"""Said as a parameter of connections: an option would stand behind PGCLIENTENCODING."""
_COLUMNS: Final = """
    select a.attname, a.atttypid::bigint, a.attgenerated <> '',
        coalesce(a.attnum = any((p.indkey::int2[])[0:p.indnkeyatts - 1]), false),
        c.relreplident = 'f' or coalesce(a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]), false)
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    left join pg_index p on p.indrelid = c.oid and p.indisprimary
    left join pg_index i on i.indrelid = c.oid and i.indimmediate and case c.relreplident
        when 'd' then i.indisprimary when 'i' then i.indisreplident else false end
    where c.oid = %s
    order by a.attnum
"""
"""The last one is whether it is of the replica identity, as the stream says it. The index of a constraint that can be
deferred is none, and columns that an index only includes are not of it."""


_MADE_ANEW: Final = """
    select c.oid::regclass::text from pg_class c where c.relfilenode <> coalesce(pg_relation_filenode(c.oid), 0)
        and c.oid in (select o from unnest(%s::oid[]) o
                      union select relid from unnest(%s::oid[]) o, pg_partition_tree(o::regclass))
"""
"""The catalog as of the snapshot says where rows were, the function where they are."""


class Snapshot(NamedTuple):
    """What a slot begins behind."""

    name: str
    position: int
    generation: int
    time_ms: int

    def enter(self, connection: Any) -> None:
        """Must be the first thing in a transaction."""
        connection.execute("set transaction isolation level repeatable read read only")
        connection.execute(f"set transaction snapshot '{self.name}'".encode())

    def begin(self, change_format: ChangeFormat, first_index: int = 0) -> None:
        change_format.begin(Transaction("", self.position, self.time_ms, self.generation), first_index)


class Part(NamedTuple):
    """Some of the rows of a table."""

    number: int
    relation: Relation
    condition: str


class _TableColumn(NamedTuple):
    column: Column
    is_generated: bool
    is_primary: bool


class PublishedTables:
    def __init__(self, connection: Any, settings: SourceSettings, database: str, change_format: ChangeFormat) -> None:
        self._sql = connection
        self._database = database
        self._format = change_format
        self.settings = settings

    def hold(self, snapshot: Snapshot) -> None:
        """Enter a snapshot, first thing in a transaction, and let nobody make its tables anew until that ends.

        Rows that `alter table` or `truncate` have written again, or dropped, since the snapshot was made are not in it,
        and the stream does not bring them. Raises OperationalError if that has happened before they were locked: then
        another snapshot is needed.
        """
        snapshot.enter(self._sql)
        tables = [relation for relation, _ in self.published()]
        try:
            for relation in tables:
                # Locks them as `lock table` does, which needs the right to read all columns.
                self._sql.execute(f"select from {quoted(relation.schema, relation.name)} limit 0".encode())
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            raise psycopg.OperationalError(f"a table has changed since the snapshot was made: {error}") from error
        oids = [relation.oid for relation in tables]
        anew = [name for (name,) in self._sql.execute(_MADE_ANEW, (oids, oids)).fetchall()]
        if anew:
            raise psycopg.OperationalError(f"{', '.join(anew)} was made anew since the snapshot was made")

    def parts(self, pages: int) -> list[Part]:
        """All rows, in parts of so many pages of 8 KiB or less. What a table has grown by since is in its last part."""
        found: list[Part] = []
        for relation, condition in self.published():
            name = quoted(relation.schema, relation.name)
            [(size,)] = self._sql.execute(
                "select pg_relation_size(to_regclass(%s)) / current_setting('block_size')::bigint", (name,)
            ).fetchall()
            starts = range(0, max(size, 1), pages)
            for start in starts:
                wanted = [f"({condition})"] if condition else []
                wanted += [f"ctid >= '({start},0)'"] if start else []
                wanted += [f"ctid < '({start + pages},0)'"] if start != starts[-1] else []
                found.append(Part(len(found), relation, " and ".join(wanted)))
        return found

    def published(self) -> list[tuple[Relation, str]]:
        """The tables of the publication with their columns, and which rows of them."""
        version = self._sql.info.server_version
        more = "attnames, rowfilter" if version >= 150000 else "null::name[], null"
        query = f"""
            select c.oid::bigint, t.schemaname, t.tablename, c.relreplident::text, {more} from pg_publication_tables t
            join pg_namespace n on n.nspname = t.schemaname
            join pg_class c on c.relnamespace = n.oid and c.relname = t.tablename
            where t.pubname = %s order by 2, 3
        """
        found = self._sql.execute(query.encode(), (self.settings.publication,)).fetchall()
        tables = []
        for oid, schema, name, identity, names, condition in found:
            # Before version 18 columns that are generated are never sent; then the publication says which ones are.
            wanted = tuple(
                known.column
                for known in self._columns(oid)
                if (names is None or known.column.name in names) and (version >= 180000 or not known.is_generated)
            )
            tables.append((Relation(oid, schema, name, identity, wanted), condition or ""))
        return tables

    def _columns(self, oid: int) -> list[_TableColumn]:
        """The columns as they are now. Where the stream is, the table may still have another name."""
        found = self._sql.execute(_COLUMNS, (oid,)).fetchall()
        return [
            _TableColumn(Column(column, type_oid, is_identity), is_generated, is_primary)
            for column, type_oid, is_generated, is_primary, is_identity in found
        ]

    def estimated_rows(self, relation: Relation, condition: str) -> int:
        """The planner's estimate, from its statistics and the size of the table; also for one that was never
        analysed."""
        [([found],)] = self._sql.execute(
            f"explain (format json) {_select('1', relation, condition)}".encode()
        ).fetchall()
        return int(found["Plan"]["Plan Rows"])

    def rows(self, relation: Relation, condition: str) -> Iterator[SourceRecord]:
        table = self.table(relation)
        query = _select(", ".join(quoted(column.name) for column in relation.columns), relation, condition)
        with self._sql.cursor() as cursor, cursor.copy(f"copy ({query}) to stdout".encode()) as copy:
            for row in copy.rows():
                if self.is_outbox(table):
                    yield self.event(outbox_event(table.fields(list(row)), self.settings.outbox_topic, table.name))
                else:
                    yield from self._format.insert(table, list(row), "r")

    def table(self, relation: Relation) -> Table:
        topic, json_as_text = _topic_name(self._wanted_topic(relation)), self._format.is_debezium
        return Table(relation, topic, self.key(relation), json_as_text=json_as_text)

    def _wanted_topic(self, relation: Relation) -> str:
        topic = self.settings.topic
        parts = {"database": self._database, "schema": relation.schema, "table": relation.name}
        for name, value in parts.items():
            topic = topic.replace("{" + name + "}", value)
        return topic

    def require_topics(self) -> None:
        """Tables are together in a topic if the settings say so, and not because a topic cannot have their names."""
        wanted: dict[str, str] = {}
        for relation, _ in self.published():
            name = self._wanted_topic(relation)
            other = wanted.setdefault(_topic_name(name), name)
            if other != name:
                raise Refused(
                    f"{other!r} and {name!r} would be one topic, {_topic_name(name)}: a topic's name has letters, "
                    "digits, dots, underscores and hyphens only. Rename one of the tables"
                )

    def key(self, relation: Relation) -> list[str]:
        if relation.identity == "d" and (identity := identity_columns(relation.columns)):
            return identity
        columns = self._columns(relation.oid)
        primary = [known.column.name for known in columns if known.is_primary]
        found = key_columns(relation, primary)
        names = [column.name for column in relation.columns]
        is_former = not set(names) <= {known.column.name for known in columns}
        if not found and relation.identity == "f" and is_former and (primary or not columns):
            # What the key was is not in the stream, and the table has since been dropped, or the key renamed. A whole
            # row has the key in it.
            return names
        return found

    def is_outbox(self, table: Table) -> bool:
        return table.name == self.settings.outbox_table

    def event(self, event: OutboxEvent) -> SourceRecord:
        return self._format.event(event._replace(topic=_topic_name(event.topic)))


def _select(what: str, relation: Relation, condition: str) -> str:
    return f"select {what} from {quoted(relation.schema, relation.name)}{f' where {condition}' if condition else ''}"


def change_format_of(settings: SourceSettings, database: str) -> ChangeFormat:
    registry = settings.schema_registry
    framing = None if registry is None else TableSchemas(RegistryClient(registry))
    return ChangeFormat(settings.format, settings.name, database, framing)


def read_part(settings: SourceSettings, snapshot: Snapshot, part: Part) -> Iterator[SourceRecord]:
    """Read a part of a table, by a connection of its own. It may run in another process."""
    name = f"oncelog-connect-{settings.name}-part"
    with psycopg.connect(
        settings.url, autocommit=True, options=SESSION_OPTIONS, client_encoding=ENCODING, application_name=name
    ) as connection:
        [(database,)] = connection.execute("select current_database()").fetchall()
        change_format = change_format_of(settings, database)
        snapshot.begin(change_format, part.number << PART_INDEX_BITS)
        with connection.transaction():
            snapshot.enter(connection)
            tables = PublishedTables(connection, settings, database, change_format)
            yield from tables.rows(part.relation, part.condition)


def _topic_name(text: str) -> str:
    """What a topic's name may not have becomes an underscore."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in text)[
        :249
    ]
