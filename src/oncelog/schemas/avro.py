"""Schemas of Avro: parsed by fastavro, compared by the rules of schema resolution in Avro's specification."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType
from fastavro.validation import ValidationError

from oncelog.schemas.avro_values import enclosed, from_avro, to_avro
from oncelog.schemas.pairs import Pairs, problems_of
from oncelog.schemas.schema import InvalidSchema, Schema, load_json

_READS: Final[Mapping[str, frozenset[str]]] = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""What a type reads besides itself."""
PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})


class AvroSchema:
    def __init__(self, schema: Schema, references: Mapping[str, Schema]) -> None:
        self.names: dict[str, Any] = {}
        """Named types, by full name."""
        for name, reference in references.items():
            _parse(reference.text, self.names)
            if name not in self.names:
                raise InvalidSchema(f"the schema that is referred to as {name} does not define it")
        self.source = _load(schema.text)
        self.root = _parse(schema.text, self.names)
        self._enclosed = enclosed(self.root, self.names)

    @property
    def canonical(self) -> str:
        return json.dumps(self.source, separators=(",", ":"), ensure_ascii=False)

    def unreadable(self, writer: AvroSchema) -> list[str]:
        return problems_of(
            lambda pairs: _Comparison(self.names, writer.names, pairs).problems(self.root, writer.root, "")
        )

    def encode(self, value: Any) -> bytes:
        buffer = io.BytesIO()
        try:
            converted = {"value": to_avro(self.root, value, self.names)}
            # The writer does not check: it would cut a number that is too large for an int.
            fastavro.validate(converted, self._enclosed)
            fastavro.schemaless_writer(buffer, self._enclosed, converted)
        except (ValidationError, ValueError, TypeError, KeyError, ArithmeticError, AttributeError, IndexError) as error:
            raise ValueError(f"does not fit its Avro schema: {_what_differs(error)}") from error
        return buffer.getvalue()

    def decode(self, payload: bytes) -> Any:
        buffer = io.BytesIO(payload)
        try:
            found: Any = fastavro.schemaless_reader(buffer, self._enclosed, None)
        except (ValueError, TypeError, KeyError, EOFError, IndexError, OverflowError) as error:
            raise ValueError(f"it is not of its Avro schema: {error or type(error).__name__}") from error
        if buffer.tell() != len(payload):
            raise ValueError(f"{len(payload) - buffer.tell()} bytes are left behind a value of its Avro schema")
        return from_avro(found["value"])


def _load(text: str) -> Any:
    try:
        return load_json(text)
    except ValueError:
        # `string` alone is a schema too, as Avro's own parser takes it.
        if text.strip() in PRIMITIVES:
            return text.strip()
        raise InvalidSchema("it is not JSON, as a schema of Avro must be") from None


def _parse(text: str, names: dict[str, Any]) -> Any:
    try:
        return fastavro.parse_schema(_load(text), named_schemas=names)
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, InvalidSchema):
            raise
        problem = f"unknown type {error.name}" if isinstance(error, UnknownType) else str(error) or repr(error)
        raise InvalidSchema(f"it is no schema of Avro: {problem}") from error


def type_of(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def resolved(schema: Any, names: Mapping[str, Any]) -> Any:
    """A name stands for what it names; `{"type": {...}}` for what is inside."""
    while True:
        if isinstance(schema, str) and schema not in PRIMITIVES:
            schema = names[schema]
        elif isinstance(schema, dict) and not isinstance(schema["type"], str):
            schema = schema["type"]
        else:
            return schema


class _Comparison:
    def __init__(self, reader_names: Mapping[str, Any], writer_names: Mapping[str, Any], pairs: Pairs) -> None:
        self._reader_names = reader_names
        self._writer_names = writer_names
        self._pairs = pairs

    def problems(self, reader: Any, writer: Any, path: str) -> list[str]:
        self._pairs.spend()
        reader, writer = resolved(reader, self._reader_names), resolved(writer, self._writer_names)
        if not isinstance(reader, dict | list) or not isinstance(writer, dict | list):
            return self._compare(reader, writer, path)
        return self._pairs.problems(reader, writer, lambda: self._compare(reader, writer, path))

    def _compare(self, reader: Any, writer: Any, path: str) -> list[str]:
        if isinstance(writer, list):
            return [problem for branch in writer for problem in self.problems(reader, branch, path)]
        if isinstance(reader, list):
            if any(not self.problems(branch, writer, path) for branch in reader):
                return []
            return [f"{path or '/'}: the reader's union has no branch for {_shown(writer)}"]
        kind, written = type_of(reader), type_of(writer)
        if kind != written and written not in _READS.get(kind, ()):
            return [f"{path or '/'}: the reader has {_shown(reader)}, the writer {_shown(writer)}"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._compare_named(reader, writer, path)
        if kind == "array":
            return self.problems(reader["items"], writer["items"], f"{path}/items")
        if kind == "map":
            return self.problems(reader["values"], writer["values"], f"{path}/values")
        return []

    def _compare_named(self, reader: Any, writer: Any, path: str) -> list[str]:
        if not _names_match(reader, writer):
            return [f"{path or '/'}: the reader has {reader['name']}, the writer {writer['name']}"]
        if reader["type"] == "fixed":
            same = reader["size"] == writer["size"]
            return [] if same else [f"{path or '/'}: the reader has {reader['size']} bytes, not {writer['size']}"]
        if reader["type"] == "enum":
            missing = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
            if not missing or "default" in reader:
                return []
            return [f"{path or '/'}: the reader does not know the symbols {', '.join(missing)}, and has no default"]
        return self._compare_fields(reader, writer, path)

    def _compare_fields(self, reader: Any, writer: Any, path: str) -> list[str]:
        written = {field["name"]: field for field in writer["fields"]}
        problems: list[str] = []
        for field in reader["fields"]:
            names = (field["name"], *field.get("aliases", ()))
            source = next((written[name] for name in names if name in written), None)
            place = f"{path}/fields/{field['name']}"
            if source is not None:
                problems += self.problems(field["type"], source["type"], place)
            elif "default" not in field:
                problems.append(f"{place}: the writer does not have it, and it has no default")
        return problems


def _names_match(reader: Any, writer: Any) -> bool:
    """Whether two named types match: by name without namespace, as in Avro's own check, or by an alias of the
    reader."""
    if _last(reader["name"]) == _last(writer["name"]):
        return True
    namespace = str(reader["name"]).rpartition(".")[0]
    aliases = [
        alias if "." in alias or not namespace else f"{namespace}.{alias}" for alias in reader.get("aliases", ())
    ]
    return writer["name"] in aliases


def _what_differs(error: Exception) -> str:
    """Of a ValidationError, without the record that encloses the value."""
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(
        f"{(each.field or '').removeprefix('oncelog_enclosed.value').removeprefix('.') or 'the value'} is "
        f"{each.datum!r}, not of the type {_shown(each.schema)}"
        for each in error.errors
    )


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _shown(schema: Any) -> str:
    kind = type_of(schema)
    return f"{kind} {schema['name']}" if kind in NAMED else kind
