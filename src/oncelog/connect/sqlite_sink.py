"""Tables of SQLite: the standard library is all that it needs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from oncelog.connect.database_sink import DatabaseSink, RowRefused, TableFacts, plain, quoted
from oncelog.connect.errors import Refused
from oncelog.connect.settings import SinkSettings
from oncelog.connect.sink import Instance

_ROW_ERRORS: Final = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError, UnicodeEncodeError)
LOCK_TIMEOUT_S: Final = 10.0


class SqliteSink(DatabaseSink):
    binary_type: ClassVar[str] = "blob"
    row_lock: ClassVar[str] = ""
    """`begin immediate` has locked the database."""

    def __init__(self, settings: SinkSettings, instance: Instance) -> None:
        super().__init__(settings, instance)
        if sqlite3.sqlite_version_info < (3, 35):
            raise Refused(f"SQLite {sqlite3.sqlite_version} is too old: 3.35 is needed")
        self._connection = sqlite3.connect(settings.url, timeout=LOCK_TIMEOUT_S, isolation_level=None)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")

    def _execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("begin immediate")
        try:
            yield
            self._connection.execute("commit")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
            raise

    def _table_facts(self, table: str) -> TableFacts | None:
        found = self._execute("select name, pk, hidden from pragma_table_xinfo(?)", (table,))
        if not found:
            return None
        key = sorted((place, name) for name, place, _ in found if place)
        return TableFacts(
            frozenset(name for name, _, hidden in found if not hidden),
            frozenset(name for name, _, hidden in found if hidden),
            tuple(name for _, name in key),
        )

    def _insert(self, table: str, columns: tuple[str, ...], rows: list[list[Any]]) -> None:
        self._many(_insert_statement(table, columns), rows)

    def _upsert(self, table: str, columns: tuple[str, ...], key: tuple[str, ...], rows: list[list[Any]]) -> None:
        changed = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in columns if name not in key)
        action = f"do update set {changed}" if changed else "do nothing"
        target = ", ".join(map(quoted, key))
        self._many(f"{_insert_statement(table, columns)} on conflict ({target}) {action}", rows)

    def _delete(self, table: str, key: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
        same = " and ".join(f"{quoted(name)} = ?" for name in key)
        self._many(f"delete from {quoted(table)} where {same}", rows)

    def _many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            self._connection.executemany(sql, ([plain(value) for value in row] for row in rows))
        except _ROW_ERRORS as error:
            raise RowRefused(str(error)) from error

    def close(self) -> None:
        self._connection.close()


def _insert_statement(table: str, columns: tuple[str, ...]) -> str:
    if not columns:
        return f"insert into {quoted(table)} default values"
    names, marks = ", ".join(map(quoted, columns)), ", ".join("?" * len(columns))
    return f"insert into {quoted(table)} ({names}) values ({marks})"
