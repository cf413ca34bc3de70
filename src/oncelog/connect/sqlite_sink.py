"""Tables of SQLite: the standard library is all that it needs."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from oncelog.connect.database_sink import DatabaseSink, RowRefused, TableFacts, plain
from oncelog.connect.errors import Refused
from oncelog.connect.identifiers import quoted, quoted_table
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
        self._connection = sqlite3.connect(
            settings.url, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
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
        found = self._execute(
            "select name, pk, hidden, [notnull] and dflt_value is null from pragma_table_xinfo(?)", (table,)
        )
        if not found:
            return None
        key = sorted((place, name) for name, place, _, _ in found if place)
        return TableFacts(
            frozenset(name for name, _, hidden, _ in found if not hidden),
            frozenset(name for name, _, hidden, _ in found if hidden),
            tuple(name for _, name in key),
            frozenset(name for name, _, hidden, required in found if required and not hidden),
            unique=frozenset((*self._unique(table), frozenset(name for _, name in key))),
        )

    def _unique(self, table: str) -> Iterator[frozenset[str]]:
        """The columns of unique indexes. That of an integer primary key is the table itself, and not among them."""
        for (index,) in self._execute("select name from pragma_index_list(?) where [unique] and not partial", (table,)):
            columns = [name for (name,) in self._execute("select name from pragma_index_info(?)", (index,))]
            if None not in columns:  # as expressions are
                yield frozenset(columns)

    def _insert(self, table: str, columns: tuple[str, ...], rows: Sequence[Collection[Any]]) -> None:
        self._many(_insert_statement(table, columns), rows)

    def _upsert(
        self, table: str, columns: tuple[str, ...], key: tuple[str, ...], rows: Sequence[Collection[Any]]
    ) -> None:
        changed = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in columns if name not in key)
        action = f"do update set {changed}" if changed else "do nothing"
        target = ", ".join(map(quoted, key))
        self._many(f"{_insert_statement(table, columns)} on conflict ({target}) {action}", rows)

    def _update_or_insert(
        self, table: str, columns: tuple[str, ...], key: tuple[str, ...], rows: Sequence[Collection[Any]]
    ) -> None:
        named = [dict(zip(columns, row, strict=True)) for row in rows]
        changed = [name for name in columns if name not in key]
        same = " and ".join(f"{quoted(name)} = ?" for name in key)
        if changed:
            values = ", ".join(f"{quoted(name)} = ?" for name in changed)
            given = [[row[name] for name in (*changed, *key)] for row in named]
            self._many(f"update {quoted_table(table)} set {values} where {same}", given)
        names, marks = ", ".join(map(quoted, columns)), ", ".join("?" * len(columns))
        self._many(
            f"insert into {quoted_table(table)} ({names}) select {marks} "
            f"where not exists (select 1 from {quoted_table(table)} where {same})",
            [[row[name] for name in (*columns, *key)] for row in named],
        )

    def _delete(self, table: str, key: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
        same = " and ".join(f"{quoted(name)} = ?" for name in key)
        self._many(f"delete from {quoted_table(table)} where {same}", rows)

    def _count(self, table: str, key: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> int:
        same = " and ".join(f"{quoted(name)} = ?" for name in key)
        query = f"select count(*) from {quoted_table(table)} where {same}"
        return sum(self._execute(query, row)[0][0] for row in rows)

    def _many(self, sql: str, rows: Sequence[Collection[Any]]) -> None:
        try:
            self._connection.executemany(sql, ([plain(value) for value in row] for row in rows))
        except _ROW_ERRORS as error:
            raise RowRefused(str(error)) from error

    def close(self) -> None:
        self._connection.close()


def _insert_statement(table: str, columns: tuple[str, ...]) -> str:
    if not columns:
        return f"insert into {quoted_table(table)} default values"
    names, marks = ", ".join(map(quoted, columns)), ", ".join("?" * len(columns))
    return f"insert into {quoted_table(table)} ({names}) values ({marks})"
