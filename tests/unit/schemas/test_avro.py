"""Avro: what can be read by what, and values of JSON in Avro's encoding."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from oncelog.schemas.kinds import parse
from oncelog.schemas.schema import InvalidSchema, Reference, Schema


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    named = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": named, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


TREE = record(("value", "int"), ("next", ["null", "R"], None))
LONG_TREE = record(("value", "long"), ("next", ["null", "R"], None))

READABLE = [
    # reader, writer, whether it can be read
    ("int", "int", True),
    ("long", "int", True),
    ("float", "long", True),
    ("double", "float", True),
    ("int", "long", False),
    ("long", "float", False),
    ("string", "bytes", True),
    ("bytes", "string", True),
    ("string", "int", False),
    ("boolean", "int", False),
    (["null", "int"], "int", True),
    ("int", ["null", "int"], False),
    ("int", ["int"], True),
    (["null", "long"], ["int", "null"], True),
    (["null", "string"], ["null", "int"], False),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, False),
    ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}, True),
    ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, False),
    (record(("a", "int")), record(("a", "int"), ("b", "int")), True),
    (record(("a", "int"), ("b", "int")), record(("a", "int")), False),
    (record(("a", "int"), ("b", "int", 3)), record(("a", "int")), True),
    (record(("a", "int"), name="S"), record(("a", "int")), False),
    (record(("a", "int"), name="S", aliases=["R"]), record(("a", "int")), True),
    (record(("a", "int"), namespace="x"), record(("a", "int"), namespace="y"), True),
    ({**record(), "fields": [{"name": "b", "type": "int", "aliases": ["a"]}]}, record(("a", "int")), True),
    (enum("A", "B"), enum("A"), True),
    (enum("A"), enum("A", "B"), False),
    (enum("A", default="A"), enum("A", "B"), True),
    ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 4}, True),
    ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 5}, False),
    (LONG_TREE, TREE, True),
    (TREE, LONG_TREE, False),
]


@pytest.mark.parametrize(("reader", "writer", "is_readable"), READABLE)
def test_what_a_reader_can_read(reader: Any, writer: Any, is_readable: bool) -> None:
    problems = parse(Schema(json.dumps(reader))).unreadable(parse(Schema(json.dumps(writer))))
    assert (not problems) == is_readable, problems


VALUES: dict[str, list[Any]] = {
    "int": [7], "boolean": [True], "string": ["x"], "null": [None], "long": [7], "float": [0.5], "double": [0.5],
    "bytes": ["\x00z"],
}  # fmt: skip


@pytest.mark.parametrize(("reader", "writer", "is_readable"), [row for row in READABLE if isinstance(row[1], str)])
def test_the_table_is_what_fastavro_does(reader: Any, writer: str, is_readable: bool) -> None:
    """An independent judge: a value is written with one schema, and read with the other."""
    payload = parse(Schema(json.dumps(writer))).encode(VALUES[writer][0])
    try:
        fastavro.schemaless_reader(io.BytesIO(payload), writer, reader)
        was_read = True
    except (fastavro.read.SchemaResolutionError, TypeError, ValueError):
        was_read = False
    assert was_read == is_readable


@pytest.mark.parametrize(
    ("schema", "value", "shown"),
    [
        ("string", "ä", "ä"),
        ("bytes", "\x00\xff", "\x00\xff"),
        (["null", "int", "string"], "x", "x"),
        (["null", "int", "string"], None, None),
        ({"type": "long", "logicalType": "timestamp-millis"}, "2026-01-31T12:00:00+00:00", "2026-01-31T12:00:00+00:00"),
        ({"type": "int", "logicalType": "date"}, "2026-01-31", "2026-01-31"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}, "12.50", "12.50"),
        (record(("a", "int"), ("b", ["null", enum("X", "Y")], None)), {"a": 1}, {"a": 1, "b": None}),
        (record(("a", "int"), ("b", ["null", enum("X", "Y")], None)), {"a": 1, "b": "Y"}, {"a": 1, "b": "Y"}),
        (TREE, {"value": 1, "next": {"value": 2}}, {"value": 1, "next": {"value": 2, "next": None}}),
        ({"type": "map", "values": {"type": "array", "items": "double"}}, {"k": [1, 2.5]}, {"k": [1.0, 2.5]}),
    ],
)
def test_values_of_json_come_back(schema: Any, value: Any, shown: Any) -> None:
    parsed = parse(Schema(json.dumps(schema)))
    assert parsed.decode(parsed.encode(value)) == shown


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("int", "x"),
        ("int", 2**40),
        ("string", 5),
        (record(("a", "int")), {"a": 1, "b": 2}),
        (record(("a", "int")), {}),
        (["null", "int"], "x"),
        (enum("A"), "B"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "yesterday"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(schema: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="does not fit its Avro schema"):
        parse(Schema(json.dumps(schema))).encode(value)


@pytest.mark.parametrize("payload", [b"", b"\x80", b"\x02a", b"\x02ab\x00rest"])
def test_a_payload_of_another_schema_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError):
        parse(Schema(json.dumps(record(("a", "string"), ("b", "int"))))).decode(payload)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '"nothing"',
        '{"type": "record"}',
        '{"type": "record", "name": "R", "fields": 5}',
        '["int", "other.Type"]',
        "[" * 5000,
        '{"type": "fixed", "name": "F", "size": 1e999}',
        '{"type": "fixed", "name": "F", "size": NaN}',
    ],
)
def test_a_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchema):
        parse(Schema(text))


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="surrogate"):
        Schema('{"type": "string", "doc": "\ud800"}')
    escaped = parse(Schema('{"type": "string", "doc": "\\ud800"}'))
    with pytest.raises(InvalidSchema, match="surrogate"):
        Schema(escaped.canonical)


def test_references_bring_the_types_that_are_used() -> None:
    money = Schema(json.dumps(record(("amount", "long"), name="shop.Money")))
    order = Schema(
        json.dumps(["null", record(("total", "shop.Money"), name="shop.Order")]),
        references=(Reference("shop.Money", "money", 1),),
    )
    parsed = parse(order, lambda reference: money)
    assert parsed.decode(parsed.encode({"total": {"amount": 5}})) == {"total": {"amount": 5}}
    with pytest.raises(InvalidSchema):
        parse(order)
    with pytest.raises(InvalidSchema, match="does not define it"):
        parse(order, lambda reference: Schema('"int"'))


def test_references_that_lead_back_are_refused() -> None:
    loop = Schema('"int"', references=(Reference("a", "s", 1),))
    with pytest.raises(InvalidSchema, match="lead back"):
        parse(loop, lambda reference: loop)


def test_a_recursive_type_is_not_taken_for_readable_because_it_was_asked_about_inside_of_itself() -> None:
    """x.W cannot be read, and so x.D, which has one, cannot; y.W has an x.D."""
    inner = record(("back", ["null", "W"], None), name="D")
    written = record(("c", inner), ("bad", "string"), name="W")
    wrong = record(("c", record(("back", ["null", "x.W"], None), name="x.D")), ("bad", "int"), name="x.W")
    right = record(("c", "x.D"), name="y.W")
    reader = parse(Schema(json.dumps([wrong, right])))
    assert reader.unreadable(parse(Schema(json.dumps(written)))) != []


def test_what_does_not_fit_is_named_by_its_field() -> None:
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    with pytest.raises(ValueError, match=r"^does not fit its Avro schema: Order\.id is 'x', not of the type int$"):
        parse(Schema(json.dumps(order))).encode({"id": "x"})
    with pytest.raises(ValueError, match=r"^does not fit its Avro schema: the value is 'x', not of the type int$"):
        parse(Schema(json.dumps("int"))).encode("x")
