"""The kinds of schemas, and the libraries that each needs. They are imported when a schema of the kind is met."""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

from oncelog.schemas.schema import AVRO, JSON, PROTOBUF, Find, InvalidSchema, ParsedSchema, Schema, referenced


class Kind(NamedTuple):
    module: str
    class_name: str


KINDS: Final = {
    AVRO: Kind("oncelog.schemas.avro", "AvroSchema"),
    JSON: Kind("oncelog.schemas.json_schema", "JsonSchema"),
    PROTOBUF: Kind("oncelog.schemas.protobuf", "ProtobufSchema"),
}


def no_references(reference: object) -> Schema:
    raise InvalidSchema("the schema has references, and nothing to find them by")


def parse(schema: Schema, find: Find = no_references) -> ParsedSchema:
    """Raises InvalidSchema."""
    kind = KINDS.get(schema.kind)
    if kind is None:
        raise InvalidSchema(f"{schema.kind!r} is no kind of schema; there are {', '.join(KINDS)}")
    try:
        parser = getattr(importlib.import_module(kind.module), kind.class_name)
    except ImportError as error:
        raise InvalidSchema(f"schemas of {schema.kind} need {error.name}: pip install 'oncelog[registry]'") from error
    try:
        parsed: ParsedSchema = parser(schema, referenced(schema, find))
    except InvalidSchema:
        raise
    except ValueError as error:
        raise InvalidSchema(f"it cannot be used: {error}") from error
    except RecursionError:
        raise InvalidSchema("it is nested too deeply") from None
    return parsed
