"""The principal in an Envelope, as Kafka's brokers write it.

version    int16, 0
type       compact string, such as User
name       compact string
by token   boolean: whether it has logged in with a delegation token
tags       none
"""

from __future__ import annotations

from oncelog.protocol.primitives import read_uvarint, uvarint


def encode_principal(principal: str) -> bytes:
    kind, _, name = principal.partition(":")
    return b"\0\0" + _compact(kind) + _compact(name) + b"\0\0"


def decode_principal(data: bytes | None) -> str:
    """Raises ValueError or IndexError."""
    if data is None:
        raise ValueError("it names no principal")
    kind, position = _read_compact(data, 2)
    name, _ = _read_compact(data, position)
    return f"{kind}:{name}"


def _compact(text: str) -> bytes:
    data = text.encode()
    return uvarint(len(data) + 1) + data


def _read_compact(data: bytes, position: int) -> tuple[str, int]:
    length, position = read_uvarint(data, position)
    end = position + length - 1
    if length < 1 or end > len(data):
        raise ValueError("the principal is cut off")
    return bytes(data[position:end]).decode(), end
