"""Messages as JSON in the form that Apache Kafka's own converters write, so that dumps can be compared.

Names in camel case, in the order of the schema; UUIDs as 22 characters, bytes in base64; a tagged field is left out at
its default, except a struct, which Kafka writes as null.
"""

from __future__ import annotations

import base64
from typing import Any
from uuid import UUID

from oncelog.core.ids import uuid_to_text
from oncelog.protocol.schema import Field, Message


def to_json(message: Message, version: int) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, field in message.FIELDS.items():
        value = getattr(message, name)
        if not field.is_in(version):
            continue
        if field.tag is not None and field.kind != "struct" and value == field.fresh_default():
            continue
        shown[_camel(name)] = _value(value, field, version)
    return shown


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _value(value: Any, field: Field, version: int) -> Any:
    if value is None:
        return None
    if field.kind == "array" and field.element is not None:
        element = field.element
        return [_value(member, element, version) for member in value]
    if isinstance(value, Message):
        return to_json(value, version)
    if isinstance(value, UUID):
        return uuid_to_text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value
