"""Variable-length integers, and the one error that says a peer's bytes cannot be understood.

A `uvarint` is base-128 in little-endian groups, the high bit meaning that more follow; flexible message versions use
it for lengths, counts and tags. A `varint` is the same after zigzag (0, -1, 1, -2 become 0, 1, 2, 3); records use it.
"""

from __future__ import annotations

from typing import Final

Readable = bytes | bytearray | memoryview

UVARINT_BYTES_MAX: Final = 5
VARLONG_BYTES_MAX: Final = 10


class MalformedRequest(ValueError):
    """The bytes of a frame do not follow the protocol; nothing useful can be answered to them."""


class TooManyElements(MalformedRequest):
    """A request has more of them than are taken."""


def read_uvarint(data: Readable, position: int) -> tuple[int, int]:
    """An unsigned integer of up to 32 bits and the position after it. Raises IndexError past the end of `data`."""
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFF, position + 1
    raise MalformedRequest(f"a uvarint is longer than {UVARINT_BYTES_MAX} bytes at byte {position}")


def append_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def uvarint(value: int) -> bytes:
    out = bytearray()
    append_uvarint(out, value)
    return bytes(out)


def read_varlong(data: Readable, position: int) -> tuple[int, int]:
    """A zigzag integer of up to 64 bits and the position after it. Raises IndexError past the end of `data`."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value = byte & 0x7F
    for shift in range(7, 7 * VARLONG_BYTES_MAX, 7):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= 0xFFFFFFFFFFFFFFFF
            return (value >> 1) ^ -(value & 1), position + 1
    raise MalformedRequest(f"a varint is longer than {VARLONG_BYTES_MAX} bytes at byte {position}")


def append_varlong(out: bytearray, value: int) -> None:
    """Append a zigzag integer; a varint and a varlong of the same value have the same bytes."""
    value = (value << 1) ^ (value >> 63)
    if value <= 0x7F:
        out.append(value)
    else:
        append_uvarint(out, value)
