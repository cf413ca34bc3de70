"""Rows of tables as Avro, with schemas that are made of the tables' columns and registered.

    PostgreSQL                   Avro
    whole numbers, oid           long
    floats                       double, or string for what JSON has no number for
    boolean                      boolean
    everything else              string: the text that PostgreSQL shows, JSON as its text

All fields of a value may be null, which is their default: a column can be added and dropped under every compatibility
level. Fields of a key are never null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from oncelog.connect.change_format import BOOLEAN, FLOATS, JSON_TYPES, NUMBERS, Table
from oncelog.connect.errors import Refused
from oncelog.connect.json_fields import fields_of
from oncelog.connect.pgoutput import Column
from oncelog.schemas.registry_client import RegistryClient, RegistryError, RegistryUnavailable
from oncelog.schemas.schema import ParsedSchema, Schema
from oncelog.schemas.wire_format import frame

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Registered(NamedTuple):
    id: int
    parsed: ParsedSchema
    texts: frozenset[str]
    """Fields whose JSON becomes text."""

    def framed(self, data: bytes) -> bytes:
        fields = fields_of(data.decode())
        row = {name: text if name in self.texts and value is not None else value for name, value, text in fields}
        return frame(self.id, self.parsed.encode(row))


class TableSchemas:
    def __init__(self, registry: RegistryClient) -> None:
        self._registry = registry
        self._values: dict[Table, _Registered] = {}
        self._keys: dict[Table, _Registered] = {}

    def framed_key(self, table: Table, key: bytes) -> bytes:
        """Of the JSON of a key. Raises Refused if the registry refuses the schema, OSError if it does not answer."""
        if table not in self._keys:
            self._keys[table] = self._register(table, f"{table.topic}-key", key_schema(table), table.key_columns)
        return self._keys[table].framed(key)

    def framed_value(self, table: Table, value: bytes) -> bytes:
        if table not in self._values:
            columns = table.relation.columns
            self._values[table] = self._register(table, f"{table.topic}-value", value_schema(table), columns)
        return self._values[table].framed(value)

    def _register(self, table: Table, subject: str, schema: Schema, columns: Sequence[Column]) -> _Registered:
        texts = frozenset(column.name for column in columns if column.type_oid in JSON_TYPES)
        try:
            return _Registered(self._registry.register(subject, schema), self._registry.parse(schema), texts)
        except RegistryUnavailable as error:
            raise ConnectionError(str(error)) from error
        except RegistryError as error:
            raise Refused(
                f"the registry refuses the schema of {table.name} as the next version of {subject}: {error}. Change "
                "the compatibility level of the subject for as long as it takes, or the table"
            ) from error


def value_schema(table: Table) -> Schema:
    fields = [{"name": _field(table, c), "type": ["null", *_types(c)], "default": None} for c in table.relation.columns]
    return _record(table, "", fields)


def key_schema(table: Table) -> Schema:
    return _record(table, "_key", [{"name": _field(table, c), "type": _types(c)[0]} for c in table.key_columns])


def _record(table: Table, suffix: str, fields: list[dict[str, Any]]) -> Schema:
    name = re.sub(r"[^A-Za-z0-9_]", "_", f"{table.relation.schema}_{table.relation.name}{suffix}")
    named = name if _NAME.fullmatch(name) else f"_{name}"
    return Schema(json.dumps({"type": "record", "name": named, "fields": fields}))


def _field(table: Table, column: Column) -> str:
    if not _NAME.fullmatch(column.name):
        raise Refused(
            f"the column {column.name!r} of {table.name} cannot be a field in Avro, whose names have letters, digits "
            "and underscores: rename it, leave it out of the publication, or write JSON without schema_registry"
        )
    return column.name


def _types(column: Column) -> list[str]:
    if column.type_oid == BOOLEAN:
        return ["boolean"]
    if column.type_oid in NUMBERS:
        return ["long"]
    return ["double", "string"] if column.type_oid in FLOATS else ["string"]
