"""The tables of metadata and control records, field by field against the schemas in Apache Kafka's jars."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from oncelog.core.ids import NULL_UUID
from oncelog.protocol.api_keys import NEVER, VERSION_MAX
from oncelog.protocol.messages.cluster_metadata import CONTROL_TYPES, RECORD_TYPES
from oncelog.protocol.schema import Field, Message
from peers.kafka.jars import jars
from tests.conformance.conftest import require

DEFAULTS: dict[str, Any] = {"string": "", "uuid": NULL_UUID, "bytes": b"", "bool": False, "float64": 0.0}


@pytest.fixture(scope="module")
def schemas() -> dict[str, dict[str, Any]]:
    require("kafka")
    return {schema["name"]: schema for schema in _schemas()}


def _schemas() -> Iterator[dict[str, Any]]:
    for jar, folder in [("kafka-metadata-*.jar", "common/metadata/"), ("kafka-clients-*.jar", "common/message/")]:
        (path,) = jars().glob(jar)
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.startswith(folder) and name.endswith(".json"):
                    yield json.loads(re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE))


def test_all_metadata_records_of_kafka_are_known(schemas: dict[str, dict[str, Any]]) -> None:
    theirs = {schema["apiKey"]: schema["name"] for schema in schemas.values() if schema["type"] == "metadata"}
    assert {number: cls.__name__ for number, cls in RECORD_TYPES.items()} == theirs


@pytest.mark.parametrize(
    "cls", [*RECORD_TYPES.values(), *(cls for _, cls in CONTROL_TYPES.values())], ids=lambda cls: cls.__name__
)
def test_fields_are_those_of_kafkas_schema(schemas: dict[str, dict[str, Any]], cls: type[Message]) -> None:
    schema = schemas[cls.__name__]
    assert (span(schema["validVersions"]), span(schema["flexibleVersions"])[0]) == (cls.VERSIONS, cls.FLEXIBLE)
    structs = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", [])}
    assert [described(name, field) for name, field in cls.FIELDS.items()] == [
        expected(field, structs) for field in schema["fields"]
    ]


def span(text: str) -> tuple[int, int]:
    """Of "0-3", "2+" or "1"."""
    if text.endswith("+"):
        return int(text[:-1]), VERSION_MAX
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def described(name: str, field: Field) -> dict[str, Any]:
    inner = field.element or field
    kind = "struct" if inner.struct is not None else inner.kind.replace("boolean", "bool")
    return {
        "name": name,
        "type": f"[]{kind}" if field.element else kind,
        "versions": (field.since, field.until),
        "nullable since": max(field.nullable_since, field.since) if field.nullable_since != NEVER else None,
        "tag": field.tag,
        "default": None if field.default is None else field.fresh_default() if kind != "struct" else [],
        "fields": inner.struct and [described(key, value) for key, value in inner.struct.FIELDS.items()],
    }


def expected(field: dict[str, Any], structs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    name, is_array = field["type"].removeprefix("[]"), field["type"].startswith("[]")
    kind = name if name[0].islower() else "struct"
    inner = field.get("fields", structs.get(name))
    return {
        "name": re.sub(r"(?<!^)(?=[A-Z])", "_", field["name"]).lower(),
        "type": f"[]{kind}" if is_array else kind,
        "versions": span(field["versions"]),
        "nullable since": span(field["nullableVersions"])[0] if "nullableVersions" in field else None,
        "tag": field.get("tag"),
        "default": default_of(field, kind, is_array),
        "fields": inner and [expected(each, structs) for each in inner],
    }


def default_of(field: dict[str, Any], kind: str, is_array: bool) -> Any:
    text = field.get("default")
    if text == "null":
        return None
    if is_array or kind == "struct":
        return []
    if text is None:
        return DEFAULTS.get(kind, 0)
    return text == "true" if kind == "bool" else int(text)
