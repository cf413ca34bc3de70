"""Tables of PostgreSQL: rows are copied, to the table itself or to a temporary one from which they are merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import psycopg
from psycopg.types.json import JsonDumper

from oncelog.connect.database_sink import (
    DEAD_LETTERS_TABLE,
    OFFSETS_TABLE,
    DatabaseSink,
    RowRefused,
    TableFacts,
    quoted,
)
from oncelog.connect.errors import Refused
from oncelog.connect.settings import SinkSettings
from oncelog.connect.sink import Instance

_ROW_ERRORS: Final = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.errors.CardinalityViolation,
    UnicodeEncodeError,
)
_COLUMNS: Final = """
    select a.attname, a.attgenerated <> '', array_position(i.indkey::int2[], a.attnum)
    from pg_attribute a left join pg_index i on i.indrelid = a.attrelid and i.indisprimary
    where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped
"""


class PostgresSink(DatabaseSink):
    binary_type: ClassVar[str] = "bytea"
    row_lock: ClassVar[str] = "for update"

    def __init__(self, settings: SinkSettings, instance: Instance) -> None:
        super().__init__(settings, instance)
        self._connection = psycopg.connect(
            settings.url, autocommit=True, application_name=f"oncelog-connect-{settings.name}"
        )
        for kind in (dict, list):
            self._connection.adapters.register_dumper(kind, JsonDumper)
        self._stages: dict[tuple[str, tuple[str, ...]], str] = {}

    def _execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            cursor = self._connection.execute(sql.replace("?", "%s").encode(), values or None)
        except psycopg.ProgrammingError as error:
            raise Refused(f"the database refuses a statement of {self.settings.name}: {error}") from error
        return cursor.fetchall() if cursor.description is not None else []

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with self._connection.transaction():
                yield
        except BaseException as error:
            self._rolled_back()
            if isinstance(error, _ROW_ERRORS):
                raise RowRefused(str(error)) from error  # of a constraint that is checked at the commit
            raise

    def _make_tables(self) -> None:
        """Asks first: a role that may not create tables can use those that are there."""
        self._execute("select pg_advisory_xact_lock(hashtext(?))", (OFFSETS_TABLE,))
        wanted = "to_regclass(?) is not null and to_regclass(?) is not null"
        if self._execute(f"select {wanted}", (OFFSETS_TABLE, DEAD_LETTERS_TABLE)) != [(True,)]:
            super()._make_tables()

    def _rolled_back(self) -> None:
        self._stages.clear()

    def _table_facts(self, table: str) -> TableFacts | None:
        found = self._connection.execute(_COLUMNS, (quoted(table),)).fetchall()
        if not found:
            return None
        key = sorted((place, name) for name, _, place in found if place is not None)
        return TableFacts(
            frozenset(name for name, generated, _ in found if not generated),
            frozenset(name for name, generated, _ in found if generated),
            tuple(name for _, name in key),
        )

    def _insert(self, table: str, columns: tuple[str, ...], rows: list[list[Any]]) -> None:
        with self._rows_checked():
            if columns:
                self._copy(quoted(table), columns, rows)
            else:
                for _ in rows:
                    self._execute(f"insert into {quoted(table)} default values")

    def _upsert(self, table: str, columns: tuple[str, ...], key: tuple[str, ...], rows: list[list[Any]]) -> None:
        names = _list(columns)
        changed = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in columns if name not in key)
        with self._rows_checked():
            stage = self._stage(table, columns)
            self._copy(stage, columns, rows)
            self._execute(
                f"insert into {quoted(table)} ({names}) overriding system value select {names} from {stage} "
                f"on conflict ({_list(key)}) {f'do update set {changed}' if changed else 'do nothing'}"
            )
            self._execute(f"truncate {stage}")

    def _delete(self, table: str, key: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
        same = " and ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in key)
        with self._rows_checked():
            stage = self._stage(table, key)
            self._copy(stage, key, rows)
            self._execute(f"delete from {quoted(table)} t using {stage} s where {same}")
            self._execute(f"truncate {stage}")

    def _stage(self, table: str, columns: tuple[str, ...]) -> str:
        """A temporary table with these columns; it lives as long as the connection."""
        place = (table, columns)
        if place not in self._stages:
            name = f"pg_temp.oncelog_stage_{len(self._stages)}"
            self._execute(f"drop table if exists {name}")
            self._execute(
                f"create temp table {name.removeprefix('pg_temp.')} as select {_list(columns)} from {quoted(table)} "
                "with no data"
            )
            self._stages[place] = name
        return self._stages[place]

    def _copy(self, target: str, columns: tuple[str, ...], rows: Sequence[Sequence[Any]]) -> None:
        with (
            self._connection.cursor() as cursor,
            cursor.copy(f"copy {target} ({_list(columns)}) from stdin".encode()) as copy,
        ):
            for row in rows:
                copy.write_row(row)

    @contextmanager
    def _rows_checked(self) -> Iterator[None]:
        try:
            yield
        except _ROW_ERRORS as error:
            raise RowRefused(str(error)) from error

    def close(self) -> None:
        self._connection.close()


def _list(columns: Sequence[str]) -> str:
    return ", ".join(map(quoted, columns))
