"""Rows of PostgreSQL as Avro: schemas that are made of columns, and what becomes of values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oncelog.client import ConsumerRecord
from oncelog.connect.change_format import ChangeFormat, Table, Transaction
from oncelog.connect.errors import Refused
from oncelog.connect.pgoutput import UNCHANGED, Column, Relation
from oncelog.connect.row_changes import Unusable
from oncelog.connect.schema_records import SchemaRecords
from oncelog.connect.settings import ConnectorConfigError, source_settings
from oncelog.connect.source import SourceRecord
from oncelog.connect.table_schemas import TableSchemas, key_schema, value_schema
from oncelog.schemas.kinds import parse
from oncelog.schemas.registry_client import RegistryError, RegistryUnavailable
from oncelog.schemas.schema import JSON, ParsedSchema, Schema
from oncelog.schemas.serialization import Deserializer
from oncelog.schemas.wire_format import frame

COLUMNS = (
    Column("id", 20, True),
    Column("name", 25, False),
    Column("is_new", 16, False),
    Column("ratio", 701, False),
    Column("more", 3802, False),
)
TABLE = Table(Relation(1, "public", "items", "d", COLUMNS), "public.items", ["id"])


class Registry:
    """As `RegistryClient`, in memory."""

    def __init__(self, refusal: RegistryError | None = None) -> None:
        self.subjects: dict[str, list[Schema]] = {}
        self._schemas: list[Schema] = []
        self._refusal = refusal

    def register(self, subject: str, schema: Schema) -> int:
        if self._refusal is not None:
            raise self._refusal
        if schema not in self._schemas:
            self._schemas.append(schema)
        self.subjects.setdefault(subject, []).append(schema)
        return self._schemas.index(schema) + 1

    def parse(self, schema: Schema) -> ParsedSchema:
        return parse(schema)

    def parsed(self, schema_id: int) -> ParsedSchema:
        return parse(self._schemas[schema_id - 1])


def change_format(registry: Any) -> ChangeFormat:
    made = ChangeFormat("rows", "bank", "db", TableSchemas(registry))
    made.begin(Transaction("7", 100, 0))
    return made


def read_by_a_sink(registry: Any, record: SourceRecord) -> tuple[Any, Any]:
    """Key and value, as JSON again."""
    records = SchemaRecords("http://127.0.0.1:1")
    records._deserialize = Deserializer(registry)
    given = ConsumerRecord(record.topic, 0, 0, 0, 0, record.key, record.value, tuple(record.headers), -1)
    found = records.plain(given)
    return tuple(None if data is None else json.loads(data) for data in (found.key, found.value))  # type: ignore[return-value]


def test_the_schema_of_a_table() -> None:
    assert json.loads(value_schema(TABLE).text) == {
        "type": "record",
        "name": "public_items",
        "fields": [
            {"name": "id", "type": ["null", "long"], "default": None},
            {"name": "name", "type": ["null", "string"], "default": None},
            {"name": "is_new", "type": ["null", "boolean"], "default": None},
            {"name": "ratio", "type": ["null", "double", "string"], "default": None},
            {"name": "more", "type": ["null", "string"], "default": None},
        ],
    }
    assert json.loads(key_schema(TABLE).text)["fields"] == [{"name": "id", "type": "long"}]


@pytest.mark.parametrize(
    ("values", "row"),
    [
        (["1", "a", "t", "1.5", '{"x": [1]}'], {"name": "a", "is_new": True, "ratio": 1.5, "more": '{"x": [1]}'}),
        (["1", None, None, None, None], {"name": None, "is_new": None, "ratio": None, "more": None}),
        (
            ["1", "a", "t", "1.5", ' {"n": 12345678901234567890.10, "s": "}, \\""} '],
            {"name": "a", "is_new": True, "ratio": 1.5, "more": '{"n": 12345678901234567890.10, "s": "}, \\""}'},
        ),
        (["1", "", "f", "NaN", '"t"'], {"name": "", "is_new": False, "ratio": "NaN", "more": '"t"'}),
    ],
)
def test_a_row_comes_out_of_a_sink_as_it_was(values: list[Any], row: dict[str, Any]) -> None:
    registry = Registry()
    [record] = change_format(registry).insert(TABLE, values)
    assert read_by_a_sink(registry, record) == ({"id": 1}, {"id": 1, **row})
    assert list(registry.subjects) == ["public.items-key", "public.items-value"]


ANYTHING = Schema("{}", JSON)


@pytest.mark.parametrize(
    ("payload", "headers", "found"),
    [
        (b'{"id": 1, "a": 2}', [("unchanged", b"a")], {"id": 1}),
        (b'{"id": 1}', [("unchanged", b"\xff")], {"id": 1}),
        (b'"no row"', [("unchanged", b"a")], "no row"),
        (b"[1]", [("unchanged", b"a")], [1]),
    ],
)
def test_headers_of_others_do_not_stop_a_sink(payload: bytes, headers: Any, found: Any) -> None:
    registry = Registry()
    value = frame(registry.register("t-value", ANYTHING), payload)
    assert read_by_a_sink(registry, SourceRecord("t", None, value, headers, 0, 0)) == (None, found)


def test_a_value_that_is_no_text_for_a_database_is_at_fault_itself() -> None:
    registry = Registry()
    schema_id = registry.register("t-value", ANYTHING)
    for key, value in ((None, b'"\\ud800"'), (b'"\\ud800"', b"{}")):
        framed = None if key is None else frame(schema_id, key)
        record = SourceRecord("t", framed, frame(schema_id, value), [], 0, 0)
        with pytest.raises(Unusable, match="half a surrogate pair"):
            read_by_a_sink(registry, record)


def test_a_column_that_is_unknown_is_not_taken_for_null() -> None:
    registry = Registry()
    [record] = change_format(registry).update(TABLE, None, ["1", UNCHANGED, "t", None, None])
    key, value = read_by_a_sink(registry, record)
    assert key == {"id": 1}
    assert value == {"id": 1, "is_new": True, "ratio": None, "more": None}


def test_a_delete_has_a_key_alone_and_a_truncate_neither_needs_a_schema() -> None:
    registry = Registry()
    made = change_format(registry)
    [deleted] = made.delete(TABLE, ["1", None, None, None, None])
    assert read_by_a_sink(registry, deleted) == ({"id": 1}, None)
    [emptied] = made.truncate(TABLE, 1)
    assert (emptied.key, emptied.value) == (b"{}", None)


def test_columns_may_come_and_go_under_every_level() -> None:
    more = Table(Relation(1, "public", "items", "d", (*COLUMNS, Column("new", 25, False))), "public.items", ["id"])
    old, new = parse(value_schema(TABLE)), parse(value_schema(more))
    assert new.unreadable(old) == []
    assert old.unreadable(new) == []


def test_a_schema_is_registered_once_for_each_form_of_a_table() -> None:
    registry = Registry()
    made = change_format(registry)
    for _ in range(3):
        made.insert(TABLE, ["1", "a", "t", "1.5", "{}"])
    assert {subject: len(schemas) for subject, schemas in registry.subjects.items()} == {
        "public.items-key": 1,
        "public.items-value": 1,
    }


def test_what_the_registry_refuses_stops_the_connector_and_its_absence_does_not() -> None:
    with pytest.raises(Refused, match=r"next version of public\.items-key"):
        change_format(Registry(RegistryError(409, "incompatible"))).insert(TABLE, ["1", "a", "t", "1.5", "{}"])
    with pytest.raises(ConnectionError):
        change_format(Registry(RegistryUnavailable("away"))).insert(TABLE, ["1", "a", "t", "1.5", "{}"])


def test_a_column_that_avro_cannot_name_is_refused() -> None:
    table = Table(Relation(1, "public", "t", "d", (Column("a b", 25, True),)), "t", ["a b"])
    with pytest.raises(Refused, match=r"'a b' of public\.t"):
        value_schema(table)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"schema_registry": "nonsense"}, "schema_registry"),
        ({"schema_registry": "http://127.0.0.1:8081", "format": "debezium"}, "write plain rows as Avro"),
    ],
)
def test_settings_that_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConnectorConfigError, match=problem):
        source_settings({"name": "s", "url": "postgresql://x", "publication": "p", **given}, {})
