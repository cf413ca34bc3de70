"""Records as lines: by template, or as JSON.

A template has the fields of a record in braces: {topic} {partition} {offset} {timestamp} {time} {key} {value}
{headers}.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from oncelog.cli import parsing
from oncelog.cli.content_types import BY_SCHEMA, ContentType, ContentTypes
from oncelog.cli.output import json_line, show_time
from oncelog.core.content import shown

if TYPE_CHECKING:
    from oncelog.client.consumer_records import ConsumerRecord

NAMED: Final = {
    "value": "{value}",
    "key-value": "{key}\\t{value}",
    "full": "{time}\\t{topic}-{partition}@{offset}\\t{key}\\t{value}\\t{headers}",
}
_FIELD: Final = re.compile(r"\{(\w+)\}")

T = TypeVar("T")
Format = Callable[["ConsumerRecord"], bytes]


def template(text: str) -> str:
    """What a `--format` stands for, with its escapes resolved."""
    return parsing.unescaped(NAMED.get(text, text), "--format").decode(errors="surrogateescape")


def text_format(text: str, delimiter: bytes, types: ContentTypes) -> Format:
    """Raises BadParameter for a field that no record has, and if there is no field at all."""
    pieces: list[bytes | Callable[[Any], bytes]] = []
    at = 0
    for match in _FIELD.finditer(text):
        pieces.append(text[at : match.start()].encode(errors="surrogateescape"))
        if match[1] not in _FIELDS:
            known = ", ".join("{" + name + "}" for name in _FIELDS)
            raise click.BadParameter(
                f"{{{match[1]}}} is no field of a record; there are {known}", param_hint="--format"
            )
        pieces.append(_typed_text(match[1], types) or _FIELDS[match[1]])
        at = match.end()
    if not pieces:
        raise click.BadParameter(
            f"{text!r} prints nothing of a record: write {', '.join(NAMED)}, json, or a template with fields such as "
            "{value}",
            param_hint="--format",
        )
    pieces.append(text[at:].encode(errors="surrogateescape") + delimiter)

    def show(record: ConsumerRecord) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(record) for piece in pieces)

    return show


def _typed_text(name: str, types: ContentTypes) -> Callable[[Any], bytes] | None:
    """For a key or value of a type; None for what is shown as it is."""
    kind = types.of(name)
    if kind is None:
        return None

    def show(record: Any) -> bytes:
        return b"" if getattr(record, name) is None else _of_type(record, name, kind, kind.text)

    return show


def _of_type(record: ConsumerRecord, name: str, kind: ContentType, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(kind.in_full(record.headers, name, getattr(record, name)))
    except ValueError as error:
        place = f"{record.topic}-{record.partition}, offset {record.offset}"
        # That a value has a schema is said by --schema-registry alone, too.
        problem = "cannot be read by --schema-registry" if kind.name == BY_SCHEMA else f"is not what --{name}-type says"
        raise click.ClickException(f"{place}: the {name} {problem}: {error}") from error


_FIELDS: Final[dict[str, Callable[[Any], bytes]]] = {
    "topic": lambda record: record.topic.encode(),
    "partition": lambda record: b"%d" % record.partition,
    "offset": lambda record: b"%d" % record.offset,
    "timestamp": lambda record: b"%d" % record.timestamp_ms,
    "time": lambda record: show_time(record.timestamp_ms).encode(),
    "key": lambda record: record.key or b"",
    "value": lambda record: record.value or b"",
    "headers": lambda record: b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers),
}


def json_format(types: ContentTypes) -> Format:
    def content(record: ConsumerRecord, name: str) -> dict[str, Any]:
        kind, data = types.of(name), getattr(record, name)
        if kind is None or data is None:
            return shown(name, data)
        return {name: _of_type(record, name, kind, kind.decode)}

    def show(record: ConsumerRecord) -> bytes:
        row: dict[str, Any] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            **content(record, "key"),
            **content(record, "value"),
        }
        if record.headers:
            row["headers"] = [{"name": name, **shown("value", value)} for name, value in record.headers]
        return json_line(row).encode() + b"\n"

    return show
