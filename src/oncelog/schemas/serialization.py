"""Keys and values with a schema, for producers and consumers.

    registry = RegistryClient("http://127.0.0.1:8081")
    producer = Producer(settings, value_serializer=Serializer(registry, Schema(text)))
    consumer = Consumer(settings, value_deserializer=Deserializer(registry))

Values are those of JSON: numbers, text, booleans, None, lists, dictionaries. None as a whole is no value at all, a
tombstone, and has no schema.
"""

from __future__ import annotations

import time
from typing import Any, Final

from oncelog.schemas.registry_client import RegistryClient
from oncelog.schemas.schema import ParsedSchema, Schema
from oncelog.schemas.wire_format import Headers, frame, unframe, with_header

LATEST_S: Final = 30.0
"""How long the newest version of a subject is taken for the newest."""


class Serializer:
    """Registers the schema under `<topic>-value`, or `<topic>-key`, when the first record of a topic is written.

    Without a schema the newest version of the subject is used, whatever it is.
    """

    def __init__(self, registry: RegistryClient, schema: Schema | None = None, *, is_key: bool = False) -> None:
        self._registry = registry
        self._schema = schema
        self._suffix = "-key" if is_key else "-value"
        self._used: dict[str, tuple[float, int, ParsedSchema]] = {}
        """By topic: until when, the id, and what encodes."""

    def __call__(self, topic: str, value: Any) -> bytes | None:
        """Raises ValueError for a value that does not fit, RegistryError if there is no schema to use."""
        if value is None:
            return None
        until_s, schema_id, parsed = self._used.get(topic) or self._find(topic)
        if time.monotonic() > until_s:
            _, schema_id, parsed = self._find(topic)
        return frame(schema_id, parsed.encode(value))

    def _find(self, topic: str) -> tuple[float, int, ParsedSchema]:
        subject = topic + self._suffix
        if self._schema is None:
            newest = self._registry.latest(subject)
            found = (time.monotonic() + LATEST_S, newest.id, self._registry.parse(newest.schema))
        else:
            schema_id = self._registry.register(subject, self._schema)
            found = (float("inf"), schema_id, self._registry.parse(self._schema))
        self._used[topic] = found
        return found


class Deserializer:
    """By the id in front of the bytes; keys and values, of any topic and of all three kinds.

    In a consumer also by the header that some serializers write instead, of values, or with `is_key` of keys.
    """

    def __init__(self, registry: RegistryClient, *, is_key: bool = False) -> None:
        self._registry = registry
        self._name = "key" if is_key else "value"

    def from_record(self, topic: str, data: bytes | None, headers: Headers) -> Any:
        return None if data is None else self(topic, with_header(headers, self._name, data))

    def __call__(self, topic: str, data: bytes | None) -> Any:
        """Raises ValueError for bytes that do not fit, RegistryError if their schema is not found."""
        if data is None:
            return None
        schema, payload = unframe(data)
        return self._registry.parsed(schema).decode(payload)
