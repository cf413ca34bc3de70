"""The records of a batch as slices of its bytes: what compaction needs to know of each, and nothing else decoded.

Most records that survive compaction are copied as they are. So a record is described by its key, its deltas, whether
it has a value, and where its bytes begin and end; value and headers are never looked into. The format of a record
stands in `protocol.batch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol import compression
from oncelog.protocol.batch import CODEC_MASK, HEADER_BYTES, LENGTH_OVERHEAD_BYTES, BatchHeader, CorruptBatchError
from oncelog.protocol.primitives import MalformedRequest, append_varlong, read_varlong

RECORDS_PER_TURN: Final = 256
"""After so many records of a long batch other threads get their turn."""

_RECORD_ATTRIBUTES: Final = 0
_SOLE_BATCH_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_OVERHEAD_BYTES + 7
"""The least length of a batch of one record: each of its seven fields takes at least a byte."""


class RecordSlice(NamedTuple):
    """A record lies from `start` to `end` of its section, its offset delta and the rest from `after_timestamp` on."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    has_value: bool
    start: int
    after_timestamp: int
    end: int


def records_section(header: BatchHeader, data: bytes, start: int) -> bytes:
    """The uncompressed records of the batch that begins at `start` of `data`."""
    section = data[start + HEADER_BYTES : start + header.size_bytes]
    return compression.decompress(header.codec, section) if header.codec else section


def slice_records(
    section: bytes, header: BatchHeader, yield_turn: Callable[[], None] = lambda: None
) -> list[RecordSlice]:
    """All records of a batch. CorruptBatchError unless they fill the section as the header says."""
    slices: list[RecordSlice] = []
    cursor, count = 0, header.records_count
    try:
        for first in range(0, count, RECORDS_PER_TURN):
            cursor = _slice_some(section, cursor, min(RECORDS_PER_TURN, count - first), slices)
            yield_turn()
    except (IndexError, MalformedRequest) as error:
        raise CorruptBatchError(
            f"record {len(slices)} of the batch at offset {header.base_offset} is malformed: {error}"
        ) from error
    if cursor != len(section):
        raise CorruptBatchError(f"{len(section) - cursor} bytes follow the last record at offset {header.last_offset}")
    return slices


def _slice_some(section: bytes, cursor: int, count: int, slices: list[RecordSlice]) -> int:
    """The hot loop of both passes of the cleaner: integers of one byte, nearly all of them, are read in place."""
    total = len(section)
    for _ in range(count):
        start = cursor
        size, cursor = read_varlong(section, cursor)
        end = cursor + size
        if size < 0 or end > total:
            raise MalformedRequest(f"it claims {size} bytes, {total - cursor} are left")
        cursor += 1
        byte = section[cursor]
        if byte < 0x80:
            timestamp_delta, cursor = (byte >> 1) ^ -(byte & 1), cursor + 1
        else:
            timestamp_delta, cursor = read_varlong(section, cursor)
        after_timestamp = cursor
        byte = section[cursor]
        if byte < 0x80:
            offset_delta, cursor = (byte >> 1) ^ -(byte & 1), cursor + 1
        else:
            offset_delta, cursor = read_varlong(section, cursor)
        byte = section[cursor]
        if byte < 0x80:
            key_size, cursor = (byte >> 1) ^ -(byte & 1), cursor + 1
        else:
            key_size, cursor = read_varlong(section, cursor)
        key = None
        if key_size >= 0:
            key = section[cursor : cursor + key_size]
            cursor += key_size
        # The sign of a zigzag integer is its lowest bit, and only -1, for null, is negative here.
        if cursor >= end:
            raise MalformedRequest(f"its key of {key_size} bytes leaves no room for a value")
        slices.append(
            RecordSlice(offset_delta, timestamp_delta, key, not section[cursor] & 1, start, after_timestamp, end)
        )
        cursor = end
    return cursor


def sole_key(header: BatchHeader, data: bytes, start: int) -> bytes | None:
    """The key of the batch that begins at `start` of `data`, if it is one of a single offset: logs of coordinators are
    full of them. Nothing else of its record is decoded.

    None if that is not enough: if there were more offsets, the batch is compressed, or the key is longer than 63 bytes.
    """
    batch_length = header.batch_length
    if (
        header.records_count != 1
        or header.last_offset_delta
        or header.attributes & CODEC_MASK
        or batch_length < _SOLE_BATCH_LENGTH_MIN
    ):
        return None
    cursor = start + HEADER_BYTES
    if data[cursor] >= 0x80:
        cursor += 1
    size, _, timestamp_delta, offset_delta, key_size = data[cursor : cursor + 5]
    key_start = cursor + 5
    key_end = key_start + (key_size >> 1)
    is_inside = key_end < start + batch_length + LENGTH_OVERHEAD_BYTES
    if not is_inside or (size | timestamp_delta) >= 0x80 or offset_delta or key_size & 0x81:
        return None
    return data[key_start:key_end]


def has_sole_value(data: bytes, start: int, key: bytes) -> bool:
    """Whether the record of the batch whose `sole_key` is `key` has a value, or is a tombstone."""
    cursor = start + HEADER_BYTES
    value_start = cursor + (data[cursor] >= 0x80) + 5 + len(key)
    return not data[value_start] & 1


def copy_records(section: bytes, slices: list[RecordSlice]) -> bytes:
    """The bytes of these records as they are."""
    return b"".join([section[record.start : record.end] for record in slices])


def rewrite_records(section: bytes, slices: list[RecordSlice], timestamp_shift_ms: int) -> bytes:
    """The bytes of these records with the timestamp deltas of the slices, raised by `timestamp_shift_ms`."""
    out = bytearray()
    for record in slices:
        delta = bytearray()
        append_varlong(delta, record.timestamp_delta + timestamp_shift_ms)
        append_varlong(out, 1 + len(delta) + record.end - record.after_timestamp)
        out.append(_RECORD_ATTRIBUTES)
        out += delta
        out += section[record.after_timestamp : record.end]
    return bytes(out)
