"""Protobuf: which changes are safe, and values of JSON in its encoding. All files are compiled once."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from oncelog.schemas.kinds import parse
from oncelog.schemas.schema import PROTOBUF, InvalidSchema, Reference, Schema
from oncelog.schemas.wire_format import split_indexes

BASE = "message M { int32 a = 1; string b = 2; }"
CHANGES = [
    # writer, reader, whether it can be read
    (BASE, "message M { int32 a = 1; string b = 2; float c = 3; }", True),
    (BASE, "message M { string b = 2; }", True),
    (BASE, "message M { int32 renamed = 1; string b = 2; }", True),
    (BASE, "message M { uint64 a = 1; bytes b = 2; }", True),
    (BASE, "message M { sint32 a = 1; string b = 2; }", False),
    (BASE, "message M { string a = 1; string b = 2; }", False),
    (BASE, "message M { repeated int32 a = 1; string b = 2; }", False),
    (BASE, "message M { int32 a = 1; repeated string b = 2; }", True),
    (BASE, "message M { int32 a = 1; N b = 2; } message N { int32 x = 1; }", False),
    (BASE, f"{BASE} message N {{ int32 x = 1; }}", True),
    (f"{BASE} message N {{ int32 x = 1; }}", BASE, False),
    (BASE, "message M { oneof one { int32 a = 1; string b = 2; } }", False),
    (BASE, "message M { string b = 2; oneof one { int32 a = 1; int32 c = 3; } }", True),
    ("message M { oneof one { int32 a = 1; string b = 2; } }", "message M { oneof one { int32 a = 1; } }", False),
    ("message M { oneof one { int32 a = 1; string b = 2; } }", BASE, True),
    ("message M { optional int32 a = 1; optional int32 b = 2; }", "message M { int32 a = 1; int32 b = 2; }", True),
    ("message M { map<string, int32> m = 1; }", "message M { map<string, int64> m = 1; }", True),
    ("message M { map<string, int32> m = 1; }", "message M { map<string, string> m = 1; }", False),
    ("message M { M inner = 1; int32 x = 2; }", "message M { M inner = 1; string x = 2; }", False),
    ("package p; message M { int32 a = 1; }", "package q; message M { int32 a = 1; }", False),
    ("enum E { A = 0; } message M { E e = 1; }", "enum E { A = 0; B = 1; } message M { int32 e = 1; }", True),
]


@cache
def proto(body: str) -> Any:
    return parse(Schema(f'syntax = "proto3"; {body}', PROTOBUF))


@pytest.mark.parametrize(("writer", "reader", "is_readable"), CHANGES)
def test_which_changes_are_safe(writer: str, reader: str, is_readable: bool) -> None:
    problems = proto(reader).unreadable(proto(writer))
    assert (not problems) == is_readable, problems


def test_values_of_json_come_back_by_message() -> None:
    parsed = proto("message M { int32 a = 1; string b = 2; }")
    payload = parsed.encode({"a": 5, "b": "x"})
    assert payload == b"\x00\x08\x05\x12\x01x"
    assert parsed.decode(payload) == {"a": 5, "b": "x"}
    with pytest.raises(ValueError, match="does not fit"):
        parsed.encode({"a": "no number"})
    with pytest.raises(ValueError, match="no message"):
        parsed.decode(b"\x02\x0a")
    with pytest.raises(ValueError):
        parsed.decode(b"\x00\xff")


def test_a_descriptor_in_base64_is_the_same_schema_as_its_text() -> None:
    parsed = proto("message M { int32 some_field = 1; message Inner { string x = 1; } Inner inner = 2; }")
    again = parse(Schema(parsed.canonical, PROTOBUF))
    assert again.canonical == parsed.canonical
    assert again.unreadable(parsed) == []
    assert again.decode(b"\x04\x00\x00\x0a\x01y") == {"x": "y"}
    assert split_indexes(b"\x04\x00\x00\x0a\x01y")[0] == (0, 0)


@pytest.mark.parametrize("as_descriptor", [False, True])
def test_imports_are_references(as_descriptor: bool) -> None:
    money = proto("package shop; message Money { int64 amount = 1; }")
    text = money.canonical if as_descriptor else 'syntax = "proto3"; package shop; message Money { int64 amount = 1; }'
    order = Schema(
        'syntax = "proto3"; import "shop/money.proto"; import "google/protobuf/timestamp.proto"; '
        "message Order { shop.Money total = 1; google.protobuf.Timestamp at = 2; }",
        PROTOBUF,
        (Reference("shop/money.proto", "money", 1),),
    )
    parsed = parse(order, lambda reference: Schema(text, PROTOBUF))
    value = {"total": {"amount": "5"}, "at": "2026-01-31T12:00:00Z"}
    assert parsed.decode(parsed.encode(value)) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("message {", "does not compile"),
        ('syntax = "proto3"; import "elsewhere.proto"; message M {}', "elsewhere.proto"),
        ('syntax = "proto3";', "needs a message"),
    ],
)
def test_a_text_that_is_no_schema_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        parse(Schema(text, PROTOBUF))


@pytest.mark.parametrize(
    "name", ["../escape.proto", "/etc/escape.proto", "no-proto.txt", "--x.proto", "@x.proto", "\0.proto"]
)
def test_a_reference_cannot_name_a_file_elsewhere(name: str) -> None:
    schema = Schema('syntax = "proto3"; message M {}', PROTOBUF, (Reference(name, "s", 1),))
    with pytest.raises(InvalidSchema, match=r"no name of a \.proto file"):
        parse(schema, lambda reference: Schema('syntax = "proto3"; message N {}', PROTOBUF))


def test_files_that_import_each_other_along_many_paths_are_added_once() -> None:
    """Each of forty files imports the next two: there are more than a hundred million paths."""
    names = [f"f{number}.proto" for number in range(40)]

    def file(number: int) -> str:
        found = FileDescriptorProto(name=names[number], package=f"p{number}", dependency=names[number + 1 : number + 3])
        found.message_type.add().name = "M"
        return base64.b64encode(found.SerializeToString()).decode()

    root = Schema(file(0), PROTOBUF, tuple(Reference(name, name, 1) for name in names[1:]))
    parsed = parse(root, lambda reference: Schema(file(names.index(reference.name)), PROTOBUF))
    assert parsed.unreadable(parsed) == []
