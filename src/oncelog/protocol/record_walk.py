"""A walk through the records of a batch that builds nothing: are they what the header says, and what is at fault?

`decode_records` makes an object of every record. A broker that only has to know that the records are there, or a few
numbers of each, uses these. The format of a record stands in `protocol.batch`. Error codes are those of Apache Kafka,
which answers what it did not expect with UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.primitives import MalformedRequest, read_varlong

RECORD_BYTES_MIN: Final = 7
"""None of the seven fields of a record takes less than a byte."""

_BODY_BYTES_MIN: Final = RECORD_BYTES_MIN - 1
_LENGTH_BYTES_MAX: Final = 5


class MalformedRecords(KafkaError):
    """Records that are not what their batch says. Readers would stop at them."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_RECORD) -> None:
        super().__init__(code, message)


def check_count(count: int, section_bytes_max: int) -> None:
    """Whether so many records can be in so many bytes. Nothing is read for that."""
    if count * RECORD_BYTES_MIN > section_bytes_max:
        raise MalformedRecords(f"{count} records take more than the {section_bytes_max} bytes that can be there")


def check_lengths(section: bytes, count: int, position: int = 0, *, followed_max: int) -> None:
    """Whether `count` records fill the section from `position` on, by the lengths of the first `followed_max` of them.

    If there are more, the others must at least have room.
    """
    followed = min(count, followed_max)
    try:
        position = _step(section, position, followed)
    except IndexError:
        raise MalformedRecords(f"fewer than {followed} records are in {len(section)} bytes") from None
    if followed < count:
        check_count(count - followed, len(section) - position)
    elif position != len(section):
        raise MalformedRecords(f"{count} records end at byte {position} of {len(section)}")


def _step(section: bytes, position: int, count: int) -> int:
    """Follow the lengths one by one. The common ones, of up to three bytes (a megabyte), are read in place."""
    for _ in range(count):
        byte = section[position]
        if byte < 0x80:
            if byte & 1 or byte < 2 * _BODY_BYTES_MIN:
                read_length(section, position)
            position += 1 + (byte >> 1)
            continue
        if not byte & 1:
            second = section[position + 1]
            if second < 0x80:
                position += 2 + ((byte & 0x7E) >> 1 | second << 6)
                continue
            third = section[position + 2]
            end = position + 3 + ((byte & 0x7E) >> 1 | (second & 0x7F) << 6 | third << 13)
            if 0 < third < 0x80 and end <= len(section):
                position = end
                continue
        length, body = read_length(section, position)
        position = body + length
    return position


def read_length(section: bytes, position: int) -> tuple[int, int]:
    """The length of the record at `position`, and where its body begins. IndexError beyond the end of the section."""
    try:
        length, body = read_varlong(section, position)
    except MalformedRequest as error:
        raise MalformedRecords(str(error), ErrorCode.UNKNOWN_SERVER_ERROR) from None
    if body - position > _LENGTH_BYTES_MAX:
        message = f"the length of a record at byte {position} has {body - position} bytes"
        raise MalformedRecords(message, ErrorCode.UNKNOWN_SERVER_ERROR)
    if not _BODY_BYTES_MIN <= length <= len(section) - body:
        raise MalformedRecords(f"a record at byte {position} claims {length} bytes, {len(section) - body} are left")
    return length, body


def walk_records(section: bytes, count: int) -> Iterator[tuple[int, int, bool]]:
    """Timestamp delta, offset delta and whether there is a key, of each record; every field is checked."""
    total = len(section)
    check_count(count, total)
    position = 0
    try:
        for number in range(count):
            # Most varints have one byte, and a call for each of them would be half of the work.
            byte = section[position]
            if byte < 0x80 and byte >> 1 < total - position and not byte & 1 and byte >= 2 * _BODY_BYTES_MIN:
                cursor, position = position + 2, position + 1 + (byte >> 1)
            else:
                length, body = read_length(section, position)
                cursor, position = body + 1, body + length
            byte = section[cursor]
            if byte < 0x80:
                timestamp_delta, cursor = (byte >> 1) ^ -(byte & 1), cursor + 1
            else:
                timestamp_delta, cursor = read_varlong(section, cursor)
            offset_delta, cursor = read_varlong(section, cursor)
            has_key = section[cursor] != 1
            cursor = _skip_field(section, cursor, position) if has_key else cursor + 1
            byte = section[cursor]
            if byte < 0x80 and not byte & 1 and byte >> 1 < position - cursor:
                cursor += 1 + (byte >> 1)
            else:
                cursor = _skip_field(section, cursor, position)
            cursor = cursor + 1 if section[cursor] == 0 else _skip_headers(section, cursor, position)
            if cursor != position:
                raise MalformedRecords(f"the length of record {number} is off by {position - cursor} bytes")
            yield timestamp_delta, offset_delta, has_key
    except (IndexError, MalformedRequest):
        raise MalformedRecords(f"a record that ends at byte {position} is malformed") from None
    if position != total:
        raise MalformedRecords(f"{count} records end at byte {position} of {total}")


def _skip_field(section: bytes, cursor: int, end: int) -> int:
    byte = section[cursor]
    size, cursor = ((byte >> 1) ^ -(byte & 1), cursor + 1) if byte < 0x80 else read_varlong(section, cursor)
    if size == -1:
        return cursor
    if not 0 <= size <= end - cursor:
        raise MalformedRecords(f"a field at byte {cursor} claims {size} bytes, {end - cursor} are left")
    return cursor + size


def _skip_headers(section: bytes, cursor: int, end: int) -> int:
    count, cursor = read_varlong(section, cursor)
    if not 0 <= count <= end - cursor:
        raise MalformedRecords(f"a record claims {count} headers in {end - cursor} bytes")
    for _ in range(count):
        if section[cursor] == 1:
            raise MalformedRecords("a header has no name")
        cursor = _skip_field(section, cursor, end)
        cursor = _skip_field(section, cursor, end)
    return cursor
