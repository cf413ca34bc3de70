"""JSON Schema: which changes are safe. A sampled judge: what is allowed must hold for real documents."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest

from oncelog.schemas.kinds import parse
from oncelog.schemas.schema import JSON, InvalidSchema, Reference, Schema

STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}


CHANGES = [
    # old, new, whether each document of the old one is valid for the new one as far as the rules can tell
    (STRING, {}, True),
    (STRING, True, True),
    (False, STRING, True),
    ({}, STRING, False),
    (STRING, NUMBER, False),
    (INTEGER, NUMBER, True),
    (NUMBER, INTEGER, False),
    ({"title": "a", **STRING}, {"title": "b", **STRING}, True),
    ({"maxLength": 5, **STRING}, {"maxLength": 6, **STRING}, True),
    ({"maxLength": 5, **STRING}, {"maxLength": 4, **STRING}, False),
    (STRING, {"minLength": 1, **STRING}, False),
    ({"minLength": 1, **STRING}, STRING, True),
    (STRING, {"pattern": "a", **STRING}, False),
    ({"minimum": 3, **NUMBER}, {"minimum": 2, **NUMBER}, True),
    ({"minimum": 3, **NUMBER}, {"minimum": 4, **NUMBER}, False),
    ({"multipleOf": 10, **NUMBER}, {"multipleOf": 5, **NUMBER}, True),
    ({"multipleOf": 5, **NUMBER}, {"multipleOf": 10, **NUMBER}, False),
    ({"enum": ["a"]}, {"enum": ["a", "b"]}, True),
    ({"enum": ["a", "b"]}, {"enum": ["a"]}, False),
    ({"enum": ["a"], **STRING}, STRING, True),
    ({"const": 1}, {"const": 2}, False),
    (STRING, {"type": ["string", "null"]}, True),
    ({"type": ["string", "null"]}, STRING, False),
    (STRING, {"oneOf": [NUMBER, STRING]}, True),
    (STRING, {"allOf": [STRING, {"maxLength": 3}]}, False),
    ({"allOf": [STRING, {"maxLength": 3}]}, STRING, True),
    ({"anyOf": [STRING, NUMBER]}, {"anyOf": [STRING, NUMBER, {"type": "null"}]}, True),
    ({"anyOf": [STRING, NUMBER]}, {"anyOf": [STRING]}, False),
    ({"oneOf": [INTEGER, STRING]}, {"oneOf": [STRING, NUMBER]}, True),
    ({"anyOf": [STRING, NUMBER]}, {"oneOf": [STRING, NUMBER]}, False),
    ({"not": STRING}, {"not": {"maxLength": 3, **STRING}}, True),
    ({"not": {"maxLength": 3, **STRING}}, {"not": STRING}, False),
    (closed(a=STRING), closed(a=STRING, b=STRING), True),
    (closed(a=STRING, b=STRING), closed(a=STRING), False),
    (closed(a=STRING), {**closed(a=STRING, b=STRING), "required": ["b"]}, False),
    (closed(a=STRING), {**closed(a=STRING), "required": ["a"]}, False),
    ({**closed(a=STRING), "required": ["a"]}, closed(a=STRING), True),
    ({"properties": {"a": STRING}}, {"properties": {"a": STRING, "b": STRING}}, False),
    ({"properties": {"a": STRING, "b": STRING}}, {"properties": {"a": STRING}}, True),
    ({"properties": {"a": STRING}}, {"properties": {"a": STRING, "b": {}}}, True),
    ({"properties": {"a": STRING}}, {"properties": {"a": STRING}, "required": ["z"]}, False),
    (closed(a=STRING), {"properties": {"a": STRING}}, True),
    ({"properties": {"a": STRING}}, closed(a=STRING), False),
    (
        {**closed(), "patternProperties": {"^s_": STRING}},
        {**closed(s_a=STRING), "patternProperties": {"^s_": STRING}},
        True,
    ),
    (
        {**closed(), "patternProperties": {"^s_": STRING}},
        {**closed(s_a=NUMBER), "patternProperties": {"^s_": STRING}},
        False,
    ),
    ({**closed(), "patternProperties": {"^s_": STRING}}, {**closed(), "patternProperties": {"^s_": NUMBER}}, False),
    ({"type": "object"}, {"type": "object", "patternProperties": {"^s_": NUMBER}}, False),
    (closed(s_a=STRING), {**closed(s_a=STRING), "patternProperties": {"^s_": NUMBER}}, False),
    (closed(s_a=STRING), {**closed(s_a=STRING), "patternProperties": {"^n_": NUMBER}}, True),
    # RE2 cannot tell which names the pattern has: what depends on it is refused.
    (
        {**closed(), "patternProperties": {"^(?!n_)": STRING}},
        {**closed(s_a=NUMBER), "patternProperties": {"^(?!n_)": STRING}},
        False,
    ),
    (
        {**closed(s_a=NUMBER), "patternProperties": {"^(?!s_)": STRING}},
        {"type": "object", "patternProperties": {"^(?!s_)": STRING}},
        False,
    ),
    (closed(s_a=STRING), {**closed(s_a=STRING), "patternProperties": {"^(?!n_)": NUMBER}}, False),
    (
        {**closed(), "patternProperties": {"^(?!n_)": STRING}},
        {**closed(), "patternProperties": {"^(?!n_)": {}}},
        True,
    ),
    (DRAFT_4 | {"maximum": 5, **NUMBER}, DRAFT_4 | {"maximum": 5, "exclusiveMaximum": True, **NUMBER}, False),
    (DRAFT_4 | {"maximum": 5, "exclusiveMaximum": True, **NUMBER}, DRAFT_4 | {"maximum": 5, **NUMBER}, True),
    ({"type": "object"}, {"type": "object", "dependencies": {"a": ["b"]}}, False),
    ({"type": "object", "dependencies": {"a": ["b"]}}, {"type": "object"}, True),
    ({"type": "array", "items": INTEGER}, {"type": "array", "items": NUMBER}, True),
    ({"type": "array", "items": NUMBER}, {"type": "array", "items": INTEGER}, False),
    ({"type": "array"}, {"type": "array", "uniqueItems": True}, False),
    ({"type": "array"}, {"type": "array", "contains": STRING}, False),
    (
        {"type": "array", "items": [STRING], "additionalItems": False},
        {"type": "array", "items": [STRING, NUMBER], "additionalItems": False},
        True,
    ),
    (
        {"type": "array", "items": [STRING, NUMBER], "additionalItems": False},
        {"type": "array", "items": [STRING], "additionalItems": False},
        False,
    ),
    ({"type": "object"}, {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}, False),
    ({**closed(a=STRING), "anyOf": [{"required": ["a"]}]}, {**closed(a=NUMBER), "anyOf": [{"required": ["a"]}]}, False),
    (
        {"$ref": "#/definitions/s", "definitions": {"s": INTEGER}},
        {"$ref": "#/definitions/t", "definitions": {"t": NUMBER}},
        True,
    ),
    (
        {"$ref": "#/definitions/s", "definitions": {"s": NUMBER}},
        {"$ref": "#/definitions/t", "definitions": {"t": INTEGER}},
        False,
    ),
]


def schema(value: Any) -> Any:
    return parse(Schema(json.dumps(value), JSON))


@pytest.mark.parametrize(("old", "new", "is_safe"), CHANGES)
def test_which_changes_are_safe(old: Any, new: Any, is_safe: bool) -> None:
    problems = schema(new).unreadable(schema(old))
    assert (not problems) == is_safe, problems


SCALARS: list[Any] = ["", "a", "b", "abcdef", 0, 3, 10, 2.5, True, None]
DOCUMENTS = [
    *SCALARS,
    *(list(items) for count in range(3) for items in itertools.product(["a", 1, 2.5, None], repeat=count)),
    *({name: value} for name in ("a", "b", "s_a", "z") for value in SCALARS),
    *({"a": first, "b": second} for first in ("x", 1) for second in ("x", 1, None)),
    {},
]


@pytest.mark.parametrize(("old", "new", "is_safe"), [row for row in CHANGES if row[2]])
def test_what_is_called_safe_is_safe_for_documents(old: Any, new: Any, is_safe: bool) -> None:
    """jsonschema is the judge."""
    before, after = jsonschema.Draft7Validator(old), jsonschema.Draft7Validator(new)
    assert [document for document in DOCUMENTS if before.is_valid(document) and not after.is_valid(document)] == []


def test_a_schema_that_refers_to_itself_is_compared() -> None:
    def tree(value: Any) -> Any:
        return schema(
            {"type": "object", "properties": {"v": value, "next": {"$ref": "#"}}, "additionalProperties": False}
        )

    assert tree(NUMBER).unreadable(tree(INTEGER)) == []
    assert tree(INTEGER).unreadable(tree(NUMBER)) != []


def test_values_are_checked_when_they_are_written() -> None:
    parsed = schema(closed(a=STRING))
    assert parsed.decode(parsed.encode({"a": "ä"})) == {"a": "ä"}
    with pytest.raises(ValueError, match="does not fit its JSON Schema"):
        parsed.encode({"a": 5})


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "5",
        '{"type": "strange"}',
        '{"$ref": "http://example.invalid/x.json"}',
        '{"$ref": "#/definitions/none"}',
        '{"$ref": "http://["}',
        '{"$schema": 5}',
        '{"$schema": "http://["}',
        '{"maximum": 1e999}',
    ],
)
def test_a_text_that_is_no_schema_is_refused_and_nothing_is_loaded_from_elsewhere(text: str) -> None:
    with pytest.raises(InvalidSchema):
        parse(Schema(text, JSON))


def test_keywords_of_another_draft_that_have_strange_values_are_not_compared() -> None:
    strange = schema({"prefixItems": True})
    with pytest.raises(InvalidSchema, match="cannot be compared"):
        strange.unreadable(schema({"type": "array"}))


def test_references_are_found_by_their_names() -> None:
    outer = Schema(
        json.dumps({"type": "object", "properties": {"m": {"$ref": "money.json"}}}),
        JSON,
        (Reference("money.json", "money", 1),),
    )
    parsed = parse(outer, lambda reference: Schema(json.dumps(INTEGER), JSON))
    assert parsed.encode({"m": 5}) == b'{"m":5}'
    with pytest.raises(ValueError):
        parsed.encode({"m": "x"})
    wider = parse(outer, lambda reference: Schema(json.dumps(NUMBER), JSON))
    assert wider.unreadable(parsed) == []
    assert parsed.unreadable(wider) != []


def test_a_recursive_schema_is_not_taken_for_safe_because_it_was_asked_about_inside_of_itself() -> None:
    """As for Avro: `wrong` is not safe, and so `d`, which has one, is not; `right` has a `d`."""

    def ref(name: str) -> dict[str, str]:
        return {"$ref": f"#/definitions/{name}"}

    old = schema({**ref("w"), "definitions": {"w": closed(c=ref("d"), bad=STRING), "d": closed(back=ref("w"))}})
    wrong, right = closed(c=ref("d"), bad=NUMBER), closed(c=ref("d"), bad=STRING)
    new = {"anyOf": [ref("wrong"), ref("right")]}
    definitions = {"wrong": wrong, "right": right, "d": closed(back=ref("wrong"))}
    assert schema({**new, "definitions": definitions}).unreadable(old) != []


def test_schemas_that_would_take_too_long_to_compare_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def many(start: int) -> Any:
        return schema({"anyOf": [{"enum": [number]} for number in range(start, start + 40)]})

    assert many(1).unreadable(many(0)) != []
    monkeypatch.setattr("oncelog.schemas.pairs.COMPARISONS_MAX", 1000)
    with pytest.raises(InvalidSchema, match="too many parts"):
        many(1).unreadable(many(0))
