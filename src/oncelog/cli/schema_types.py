"""Keys and values with a schema of a registry, for `consume` and `produce`: Avro, JSON Schema and Protobuf.

In lines they are JSON, whatever the schema is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from oncelog.cli.content_types import BY_SCHEMA, ContentType, ContentTypes, content_type
from oncelog.cli.extras import require_extra

if TYPE_CHECKING:
    from oncelog.schemas.registry_client import RegistryClient
    from oncelog.schemas.schema import Schema

F = TypeVar("F", bound=Callable[..., Any])
KINDS_BY_SUFFIX: Final = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}


def registry_option(command: F) -> F:
    return click.option(
        "--schema-registry", metavar="URL",
        help="A schema registry, such as http://127.0.0.1:8081: values have a schema in front, unless --key-type or "
             "--value-type says what has one.",
    )(command)  # fmt: skip


def schema_file_options(command: F) -> F:
    """`--key-schema` and `--value-schema`, for what is written."""
    for name in ("value", "key"):
        command = click.option(
            f"--{name}-schema", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
            help=f"The schema of {name}s, which is registered: .avsc, .json (JSON Schema) or .proto.  "
                 f"[default: the newest of TOPIC-{name}]",
        )(command)  # fmt: skip
    return command


class SchemaTypes:
    """The types of keys and values, from the options of a command."""

    def __init__(self, url: str | None, key_type: str, value_type: str) -> None:
        if url is None and BY_SCHEMA in (key_type, value_type):
            raise click.UsageError("the type schema needs --schema-registry URL")
        if url is not None and BY_SCHEMA not in (key_type, value_type):
            if value_type != "text":
                raise click.UsageError(
                    f"--schema-registry has no use: the values are {value_type}, and keys {key_type}"
                )
            value_type = BY_SCHEMA
        self._names = {"key": key_type, "value": value_type}
        self._registry = None if url is None else registry_client(url)

    def for_reading(self) -> ContentTypes:
        return ContentTypes(*(self._type(field) for field in self._names))

    def for_writing(self, topic: str, key_schema: Path | None, value_schema: Path | None) -> ContentTypes:
        files = {"key": key_schema, "value": value_schema}
        for field, file in files.items():
            if file is not None and self._names[field] != BY_SCHEMA:
                raise click.UsageError(f"--{field}-schema needs --schema-registry and --{field}-type schema")
        return ContentTypes(*(self._type(field, topic, files[field]) for field in self._names))

    def _type(self, field: str, topic: str = "", file: Path | None = None) -> ContentType | None:
        name = self._names[field]
        if name != BY_SCHEMA or self._registry is None:
            return content_type(name)
        return by_schema(self._registry, topic, None if file is None else _schema(file), is_key=field == "key")


def by_schema(registry: RegistryClient, topic: str, schema: Schema | None, *, is_key: bool) -> ContentType:
    from oncelog.schemas.registry_client import RegistryError
    from oncelog.schemas.serialization import Deserializer, Serializer
    from oncelog.schemas.wire_format import with_header

    serializer, deserializer = Serializer(registry, schema, is_key=is_key), Deserializer(registry)

    def encode(given: Any) -> bytes:
        try:
            value = json.loads(given) if isinstance(given, str) else given
        except ValueError as error:
            raise ValueError(f"{given[:60]!r} is not JSON: {error}") from None
        if value is None:
            raise ValueError("null has no schema: --null, or null in --format json, writes a tombstone")
        try:
            return serializer(topic, value) or b""
        except RegistryError as error:
            raise ValueError(f"has no schema: {error}") from error

    def decode(data: bytes) -> Any:
        try:
            return deserializer(topic, data)
        except RegistryError as error:
            raise ValueError(f"its schema was not found: {error}") from error

    return ContentType(BY_SCHEMA, encode, decode, takes_json=True, in_full=with_header)


def registry_client(url: str, timeout_s: float = 10.0) -> RegistryClient:
    require_extra("registry", "what reads schemas", "fastavro", "jsonschema")
    from oncelog.schemas.registry_client import RegistryClient

    try:
        return RegistryClient(url, timeout_s=timeout_s)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--schema-registry") from None


def _schema(file: Path) -> Schema:
    from oncelog.schemas.schema import Schema

    kind = KINDS_BY_SUFFIX.get(file.suffix)
    if kind is None:
        raise click.UsageError(f"{file}: a schema is in a file that ends with {', '.join(KINDS_BY_SUFFIX)}")
    return Schema(file.read_text(), kind)
