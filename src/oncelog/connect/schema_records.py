"""Records whose keys and values have a schema of a registry, as records of JSON.

A value must have one. A key may: plain text and JSON do not begin with a byte 0. Either is named in front of the bytes
or in a header. Fields that the header `unchanged`
names are left out: their schema gives them a default, which is not what they are.
"""

from __future__ import annotations

import json
from typing import Any, Final

from oncelog.client import ConsumerRecord
from oncelog.connect.errors import Refused
from oncelog.connect.row_changes import Unusable, unchanged_fields
from oncelog.schemas.registry_client import RegistryClient, RegistryError
from oncelog.schemas.schema import JSON, InvalidSchema
from oncelog.schemas.serialization import Deserializer
from oncelog.schemas.wire_format import unframe, with_header

UNKNOWN_SCHEMA: Final = 40403
_FRAMED: Final = b"\0"


class SchemaRecords:
    def __init__(self, url: str) -> None:
        self._registry = RegistryClient(url)
        self._deserialize = Deserializer(self._registry)

    def plain(self, record: ConsumerRecord) -> ConsumerRecord:
        """Raises Unusable for a record at fault, Refused for a schema, OSError if the registry does not answer."""
        key, value = record.key, record.value
        if key is not None:
            framed = with_header(record.headers, "key", key)
            if framed is not key or key.startswith(_FRAMED):
                key = _json("key", self._decoded("key", record.topic, framed))
        if value is not None:
            found = self._decoded("value", record.topic, with_header(record.headers, "value", value))
            value = _json("value", _without(found, unchanged_fields(record)))
        return record._replace(key=key, value=value)

    def has_json_in_texts(self, record: ConsumerRecord) -> bool:
        """Of a record that was read before: Avro and Protobuf have no type for JSON, and sources write its text."""
        framed = with_header(record.headers, "value", record.value or b"")
        return self._registry.schema(unframe(framed).schema).kind != JSON

    def _decoded(self, name: str, topic: str, data: bytes) -> Any:
        try:
            return self._deserialize(topic, data)
        except RegistryError as error:
            if error.code != UNKNOWN_SCHEMA:
                raise ConnectionError(str(error)) from error
            raise Unusable(f"the schema of its {name} is not known: {error}") from error
        except InvalidSchema as error:
            raise Refused(f"the schema of a {name} in {topic} cannot be used here: {error}") from error
        except ValueError as error:
            raise Unusable(f"its {name} cannot be read by its schema: {error}") from error


def _json(name: str, value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Unusable(f"its {name} has half a surrogate pair, which is no character") from None


def _without(value: Any, names: frozenset[str]) -> Any:
    """A row without these fields. What is no row is returned as it is: whoever reads it refuses it."""
    if not names or not isinstance(value, dict):
        return value
    return {name: field for name, field in value.items() if name not in names}
