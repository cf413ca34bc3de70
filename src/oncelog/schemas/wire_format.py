"""How a schema is named in front of a payload, as Confluent's serializers do it. No I/O.

    0            byte     magic
    id           u32 big-endian
    indexes      Protobuf only: which message of the file, as a path of zigzag varints with their count in front;
                 the first message, the path [0], is the single byte 0
    payload      Avro binary, JSON text, or a Protobuf message

Newer serializers can put the schema into a header instead: `__key_schema_id` or `__value_schema_id`, a byte 1, the 16
bytes of a GUID, and the indexes of Protobuf. Then the payload stands alone; with the header in front of it again it is
read as above.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable
from typing import Final, NamedTuple

from oncelog.protocol.primitives import append_varlong, read_varlong

_PREFIX: Final = struct.Struct(">BI")
MAGIC_ID: Final = 0
MAGIC_GUID: Final = 1
GUID_END: Final = 17
ID_MAX: Final = 2**31 - 1
INDEX_MAX: Final = 2**31 - 1
INDEXES_MAX: Final = 64
"""Messages are not nested deeper than that; a larger count is damage."""
FIRST_MESSAGE: Final = (0,)
Headers = Iterable[tuple[str, bytes | None]]


SchemaName = int | uuid.UUID
"""An id of the registry, or a GUID, which is the same in all registries."""


class Framed(NamedTuple):
    schema: SchemaName
    payload: bytes
    """With message indexes, if it is Protobuf."""


def frame(schema_id: int, payload: bytes) -> bytes:
    if not 0 <= schema_id <= ID_MAX:
        raise ValueError(f"{schema_id} is no id of a schema")
    return _PREFIX.pack(MAGIC_ID, schema_id) + payload


def unframe(data: bytes) -> Framed:
    """Raises ValueError for bytes that no serializer with a registry has written."""
    if len(data) < _PREFIX.size:
        raise ValueError(f"it has {len(data)} bytes: too few for the id of a schema")
    magic, schema_id = _PREFIX.unpack_from(data)
    if magic == MAGIC_GUID and len(data) >= GUID_END:
        return Framed(uuid.UUID(bytes=data[1:GUID_END]), data[GUID_END:])
    if magic != MAGIC_ID:
        raise ValueError(f"it begins with the byte {magic}, not with 0 and the id of a schema")
    return Framed(schema_id, data[_PREFIX.size :])


def with_header(headers: Headers, name: str, data: bytes) -> bytes:
    """The bytes of a record's key or value, with what its header says of their schema in front."""
    wanted = f"__{name}_schema_id"
    return next((value + data for header, value in headers if header == wanted and value is not None), data)


def encode_indexes(indexes: tuple[int, ...]) -> bytes:
    encoded = bytearray()
    for number in (0,) if indexes == FIRST_MESSAGE else (len(indexes), *indexes):
        append_varlong(encoded, number)
    return bytes(encoded)


def split_indexes(payload: bytes) -> tuple[tuple[int, ...], bytes]:
    """Which message it is, and the message. Raises ValueError."""
    try:
        count, at = read_varlong(payload, 0)
        if count == 0:
            return FIRST_MESSAGE, payload[at:]
        if not 0 < count <= INDEXES_MAX:
            raise ValueError(f"it has {count} message indexes")
        indexes = []
        for _ in range(count):
            index, at = read_varlong(payload, at)
            if not 0 <= index <= INDEX_MAX:
                raise ValueError(f"{index} is no index of a message")
            indexes.append(index)
    except IndexError:
        raise ValueError("it ends inside of its message indexes") from None
    return tuple(indexes), payload[at:]
