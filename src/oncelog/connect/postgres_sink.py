"""Tables of PostgreSQL: rows are copied, to the table itself or to a temporary one from which they are merged."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import psycopg

from oncelog.connect.copy_text import NulInText, copy_text
from oncelog.connect.database_sink import (
    DEAD_LETTERS_TABLE,
    OFFSETS_TABLE,
    DatabaseSink,
    RowRefused,
    TableFacts,
)
from oncelog.connect.errors import Refused
from oncelog.connect.finding import Finding
from oncelog.connect.identifiers import quoted, quoted_table
from oncelog.connect.postgres_rights import WRITE, Rights
from oncelog.connect.settings import SinkSettings
from oncelog.connect.sink import Instance
from oncelog.connect.sqlstates import Fault, fault_of

_COLUMNS: Final = """
    select a.attname, a.attgenerated <> '', array_position((i.indkey::int2[])[0:i.indnkeyatts - 1], a.attnum),
        a.attnotnull and not a.atthasdef and a.attidentity = '' or exists (
            select from pg_constraint c where c.conrelid = a.attrelid and c.contype = 'c' and a.attnum = any(c.conkey)),
        a.atttypid in ('json'::regtype, 'jsonb'::regtype)
    from pg_attribute a left join pg_index i on i.indrelid = a.attrelid and i.indisprimary
    where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped
"""
_UNIQUE: Final = """
    select array(select attname::text from pg_attribute a
                 where a.attrelid = i.indrelid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]))
    from pg_index i where i.indrelid = to_regclass(%s) and i.indisunique and i.indimmediate and i.indisvalid
        and i.indpred is null and i.indexprs is null
"""
"""Without the columns that an index only includes."""


class PostgresSink(DatabaseSink):
    binary_type: ClassVar[str] = "bytea"
    row_lock: ClassVar[str] = "for update"

    def __init__(self, settings: SinkSettings, instance: Instance) -> None:
        super().__init__(settings, instance)
        self._application = f"oncelog-connect-{settings.name}"
        self._connection = psycopg.connect(settings.url, autocommit=True, application_name=self._application)
        self._stages: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._filled: set[str] = set()
        """Stages that this transaction has used."""

    def _execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        # Without values, as all statements with names of users are, psycopg takes the text as it is.
        text = sql.replace("?", "%s") if values else sql
        with self._faults():
            cursor = self._connection.execute(text.encode(), values or None)
            return cursor.fetchall() if cursor.description is not None else []

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with self._faults(), self._connection.transaction():  # constraints may be checked at the commit
                yield
        except BaseException:
            self._rolled_back()
            raise
        finally:
            self._filled.clear()

    def _cut_off_predecessor(self) -> None:
        self._execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = ? and pid <> pg_backend_pid() and datname = current_database()",
            (self._application,),
        )

    def _make_tables(self) -> None:
        """Asks first: a role that may not create tables can use those that are there."""
        self._execute("select pg_advisory_xact_lock(hashtext(?))", (OFFSETS_TABLE,))
        wanted = "to_regclass(?) is not null and to_regclass(?) is not null"
        if self._execute(f"select {wanted}", (OFFSETS_TABLE, DEAD_LETTERS_TABLE)) != [(True,)]:
            super()._make_tables()

    def _rolled_back(self) -> None:
        self._stages.clear()

    def _table_facts(self, table: str) -> TableFacts | None:
        with self._faults():
            name = (quoted_table(table),)
            found = self._connection.execute(_COLUMNS, name).fetchall()
            unique = frozenset(frozenset(names) for (names,) in self._connection.execute(_UNIQUE, name).fetchall())
            is_view = self._connection.execute("select relkind = 'v' from pg_class where oid = to_regclass(%s)", name)
            [of_view] = is_view.fetchone() or [False]
        if not found:
            return None
        key = sorted((place, name) for name, _, place, _, _ in found if place is not None)
        return TableFacts(
            frozenset(name for name, generated, *_ in found if not generated),
            frozenset(name for name, generated, *_ in found if generated),
            tuple(name for _, name in key),
            frozenset(name for name, generated, _, required, _ in found if required and not generated),
            frozenset(name for name, *_, is_json in found if is_json),
            None if of_view else unique,
        )

    def check_rights_on(self, table: str) -> Iterator[Finding]:
        with self._faults():
            yield from Rights(self._connection).on_table(table, WRITE[self.settings.mode])

    def check_rights(self) -> Iterator[Finding]:
        with self._faults():
            rights = Rights(self._connection)
            yield from rights.own_tables(OFFSETS_TABLE, DEAD_LETTERS_TABLE)
            if self.settings.mode == "upsert":
                yield from rights.stage()

    def _encode(self, rows: Sequence[Collection[Any]]) -> bytes:
        with self._faults():
            return copy_text(rows, self._connection.info.encoding)

    def _insert(self, table: str, columns: tuple[str, ...], rows: bytes) -> None:
        with self._faults():
            if columns:
                self._copy(quoted_table(table), columns, rows)
            else:
                for _ in rows.splitlines():  # each is empty
                    self._execute(f"insert into {quoted_table(table)} default values")

    def _upsert(self, table: str, columns: tuple[str, ...], key: tuple[str, ...], rows: bytes) -> None:
        names = _list(columns)
        changed = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in columns if name not in key)
        with self._faults():
            stage = self._filled_stage(table, columns, rows)
            self._execute(
                f"insert into {quoted_table(table)} ({names}) overriding system value select {names} from {stage} "
                f"on conflict ({_list(key)}) {f'do update set {changed}' if changed else 'do nothing'}"
            )

    def _update_or_insert(self, table: str, columns: tuple[str, ...], key: tuple[str, ...], rows: bytes) -> None:
        names = _list(columns)
        same = " and ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in key)
        changed = ", ".join(f"{quoted(name)} = s.{quoted(name)}" for name in columns if name not in key)
        with self._faults():
            stage = self._filled_stage(table, columns, rows)
            if changed:
                self._execute(f"update {quoted_table(table)} t set {changed} from {stage} s where {same}")
            self._execute(
                f"insert into {quoted_table(table)} ({names}) overriding system value select {names} from {stage} s "
                f"where not exists (select from {quoted_table(table)} t where {same})"
            )

    def _delete(self, table: str, key: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
        same = " and ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in key)
        with self._faults():
            stage = self._filled_stage(table, key, self._encode(rows))
            self._execute(f"delete from {quoted_table(table)} t using {stage} s where {same}")

    def _count(self, table: str, key: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> int:
        same = " and ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in key)
        with self._faults():
            stage = self._filled_stage(table, key, self._encode(rows))
            [(count,)] = self._execute(f"select count(*) from {quoted_table(table)} t join {stage} s on {same}")
        return int(count)

    def _filled_stage(self, table: str, columns: tuple[str, ...], rows: bytes) -> str:
        stage = self._stage(table, columns)
        if stage in self._filled:
            self._execute(f"truncate {stage}")
        self._filled.add(stage)
        self._copy(stage, columns, rows)
        return stage

    def _stage(self, table: str, columns: tuple[str, ...]) -> str:
        """A temporary table with these columns, for as long as the connection lives. A commit empties it.

        Records may leave out any of the columns: so there is one stage of a table, for all that were there so far, and
        not one for each choice of them.
        """
        name, known = self._stages.get(table, (f"pg_temp.oncelog_stage_{len(self._stages)}", ()))
        if not set(columns) <= set(known):
            known += tuple(column for column in columns if column not in known)
            self._execute(f"drop table if exists {name}")
            self._execute(
                f"create temp table {name.removeprefix('pg_temp.')} on commit delete rows as select {_list(known)} "
                f"from {quoted_table(table)} with no data"
            )
            self._stages[table] = name, known
        return name

    def _copy(self, target: str, columns: tuple[str, ...], rows: bytes) -> None:
        with (
            self._connection.cursor() as cursor,
            cursor.copy(f"copy {target} ({_list(columns)}) from stdin".encode()) as copy,
        ):
            copy.write(rows)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Raises what an error means; see `sqlstates`."""
        try:
            yield
        except (psycopg.DataError, NulInText, UnicodeEncodeError) as error:  # those of the driver have no code
            raise RowRefused(str(error)) from error
        except psycopg.Error as error:
            match None if error.sqlstate is None else fault_of(error.sqlstate, error.diag.source_function):
                case Fault.RECORD:
                    raise RowRefused(str(error)) from error
                case Fault.STATEMENT:
                    raise Refused(f"the database refuses a statement of {self.settings.name}: {error}") from error
                case Fault.MOMENT if not isinstance(error, psycopg.OperationalError):
                    raise psycopg.OperationalError(str(error)) from error
            raise

    def close(self) -> None:
        self._connection.close()


def _list(columns: Sequence[str]) -> str:
    return ", ".join(map(quoted, columns))
