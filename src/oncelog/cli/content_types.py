"""Keys and values that are not text: numbers as Java's serializers write them, JSON, and bytes as hex or base64.

A type turns what stands in a line into bytes, and bytes into a value that JSON can have. Null stays null.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import click

from oncelog.cli.parsing import Choice

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ContentType:
    name: str
    encode: Callable[[Any], bytes]
    """Of text, or of a value from JSON. Raises ValueError."""
    decode: Callable[[bytes], Any]
    """Raises ValueError for bytes that are not of this type."""
    takes_json: bool = False
    """Text that is encoded is JSON, and not a string."""
    in_full: Callable[[Any, str, bytes], bytes] = lambda headers, name, data: data
    """What there is to decode, of a record's headers and its key or value; `name` says which."""

    def text(self, data: bytes) -> bytes:
        value = self.decode(data)
        return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()


def _number(name: str, code: str, parse: Callable[[Any], Any]) -> ContentType:
    layout = struct.Struct(">" + code)

    def encode(given: Any) -> bytes:
        try:
            return layout.pack(parse(given))
        except (ValueError, TypeError, struct.error, OverflowError):
            raise ValueError(f"{given!r} is not {_ARTICLES.get(name, 'a')} {name}") from None

    def decode(data: bytes) -> Any:
        if len(data) != layout.size:
            raise ValueError(f"it has {len(data)} bytes, and {_ARTICLES.get(name, 'a')} {name} has {layout.size}")
        return layout.unpack(data)[0]

    return ContentType(name, encode, decode)


_ARTICLES: Final = {"int": "an"}


def _whole(given: Any) -> int:
    if isinstance(given, float | bool):
        raise ValueError
    return int(given)


def _from_hex(given: Any) -> bytes:
    try:
        return bytes.fromhex(given)
    except (ValueError, TypeError):
        raise ValueError(f"{given!r} is not hex") from None


def _from_base64(given: Any) -> bytes:
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise ValueError(f"{given!r} is not base64") from None


def _from_json(given: Any) -> bytes:
    """Text that is JSON as it stands; another value of JSON as its shortest text."""
    if not isinstance(given, str):
        return json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode()
    try:
        json.loads(given)
    except ValueError as error:
        raise ValueError(f"{given[:60]!r} is not JSON: {error}") from None
    return given.encode()


def _to_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None


CONTENT_TYPES: Final = {
    kind.name: kind
    for kind in (
        _number("short", "h", _whole),
        _number("int", "i", _whole),
        _number("long", "q", _whole),
        _number("float", "f", float),
        _number("double", "d", float),
        ContentType("hex", _from_hex, bytes.hex),
        ContentType("base64", _from_base64, lambda data: base64.b64encode(data).decode()),
        ContentType("json", _from_json, _to_json, takes_json=True),
    )
}


class ContentTypes(NamedTuple):
    """Of keys and values; None for text and bytes, which are taken and shown as they are."""

    key: ContentType | None = None
    value: ContentType | None = None

    def of(self, field: str) -> ContentType | None:
        return {"key": self.key, "value": self.value}.get(field)


AS_THEY_ARE: Final = ContentTypes()
BY_SCHEMA: Final = "schema"
"""The type of what has a schema of a registry: see `schema_types`."""


def content_type_options(command: F) -> F:
    """`--key-type` and `--value-type`, handed to the command as names."""
    for name in ("value", "key"):
        command = click.option(
            f"--{name}-type", type=Choice(["text", *CONTENT_TYPES, BY_SCHEMA]), default="text", show_default=True,
            help=f"What the {name}s are: text or bytes as they are, numbers as Java's serializers write them, JSON, "
                 "bytes shown as hex or base64, or what has a schema of the --schema-registry.",
        )(command)  # fmt: skip
    return command


def content_type(name: str) -> ContentType | None:
    """None for text, which is taken and shown as it is."""
    return CONTENT_TYPES.get(name)
