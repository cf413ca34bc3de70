"""What the user of a connector may do in PostgreSQL, and the SQL that grants what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from oncelog.connect.finding import Finding
from oncelog.connect.identifiers import quoted, quoted_table

WRITE: Final = {"append": ("insert",), "upsert": ("select", "insert", "update", "delete")}
"""By the mode of a sink. Rows that are upserted are read from a temporary table that is made like the target."""
KEEP: Final = ("select", "insert", "update")
"""Of a sink's own tables."""
_RIGHTS: Final = """
    select n.nspname, c.relname, wanted from pg_class c join pg_namespace n on n.oid = c.relnamespace,
        unnest(string_to_array(%s, ' ')) with ordinality w (wanted, place)
    where c.oid = to_regclass(%s) and not has_table_privilege(c.oid, wanted)
        and not (wanted <> 'delete' and has_any_column_privilege(c.oid, replace(wanted, 'delete', 'select')))
    order by place
"""
"""Those that are missing. All but deletes can be granted for columns too."""


class Rights:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.user = self._value("select current_user")

    def _value(self, query: str, *values: Any) -> Any:
        row = self._connection.execute(query.encode(), values or None).fetchone()
        return None if row is None else row[0]

    @property
    def _role(self) -> str:
        return quoted(self.user)

    def on_table(self, table: str, wanted: Sequence[str]) -> Iterator[Finding]:
        """The rights that are missing on a table, if it exists. It is named as in settings."""
        schema, _, _ = table.rpartition(".")
        if schema and self._value("select has_schema_privilege(oid, 'usage') from pg_namespace where nspname = %s",
                                  schema) is False:  # fmt: skip
            text = f"user {self.user} may not use the schema {schema}"
            yield Finding(False, text, f"grant usage on schema {quoted(schema)} to {self._role};")
            return
        found = self._connection.execute(_RIGHTS, (" ".join(wanted), quoted_table(table))).fetchall()
        missing = [right for _, _, right in found]
        if missing:
            [(schema, name)] = {(schema, name) for schema, name, _ in found}
            text = f"user {self.user} may not {' and not '.join(missing)} in table {table}"
            yield Finding(False, text, f"grant {', '.join(missing)} on {quoted(schema, name)} to {self._role};")

    def read_all(self, table: str) -> Iterator[Finding]:
        """What keeps a snapshot from having all rows."""
        found = [*self.on_table(table, ("select",))]
        yield from found
        if not found and self._value("select row_security_active(to_regclass(%s))", quoted_table(table)):
            text = f"the policies of table {table} do not show user {self.user} all of its rows"
            yield Finding(False, text, f"alter role {self._role} bypassrls;")

    def own_tables(self, *tables: str) -> Iterator[Finding]:
        """What a sink may not do with its own tables, or what keeps it from making them."""
        if all(self._value("select to_regclass(%s) is not null", table) for table in tables):
            for table in tables:
                yield from self.on_table(table, KEEP)
            return
        schema = self._value("select current_schema()")
        if schema is None:
            text = f"user {self.user} has no schema to make the tables {' and '.join(tables)} in"
            yield Finding(False, text, f"create schema authorization {self._role};")
        elif not self._value("select has_schema_privilege(%s, 'create')", schema):
            text = f"user {self.user} may not make the tables {' and '.join(tables)} in the schema {schema}"
            yield Finding(False, text, f"grant create on schema {quoted(schema)} to {self._role};")

    def stage(self) -> Iterator[Finding]:
        if not self._value("select has_database_privilege(current_database(), 'temporary')"):
            database = self._value("select current_database()")
            text = f"user {self.user} may not make temporary tables, through which rows are upserted"
            yield Finding(False, text, f"grant temporary on database {quoted(database)} to {self._role};")
