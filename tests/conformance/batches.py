"""Record batches v2 by hand, for requests that a client library would not send, and the other way round for
transcripts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import google_crc32c

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_AFTER_CRC: Final = struct.Struct(">hiqqqhii")
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
TIMESTAMP_MS: Final = 1_700_000_000_000


def varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _bytes(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(offset_delta: int, key: bytes | None, value: bytes | None, timestamp_delta: int = 0) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + _bytes(key) + _bytes(value) + varint(0)
    return varint(len(body)) + body


def batch(
    values: Sequence[bytes | None],
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    keys: Sequence[bytes | None] | None = None,
    timestamp_ms: int = TIMESTAMP_MS,
    timestamps_ms: Sequence[int] | None = None,
    records_count: int | None = None,
    last_offset_delta: int | None = None,
    base_offset: int = 0,
    magic: int = 2,
    attributes: int = 0,
    crc_error: bool = False,
    section: bytes | None = None,
) -> bytes:
    """One batch; what a broker must refuse can be asked for too. `section` takes the place of the records' bytes."""
    times = list(timestamps_ms) if timestamps_ms is not None else [timestamp_ms] * len(values)
    names = list(keys) if keys is not None else [b"k%d" % number for number in range(len(values))]
    base_time = times[0] if times else timestamp_ms
    body = b"".join(
        record(number, names[number], value, times[number] - base_time) for number, value in enumerate(values)
    )
    body = body if section is None else section
    flags = attributes | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    count = len(values) if records_count is None else records_count
    last_delta = len(values) - 1 if last_offset_delta is None else last_offset_delta
    rest = _AFTER_CRC.pack(
        flags, last_delta, base_time, max(times, default=base_time), producer_id, epoch, sequence, count
    )
    checksum = google_crc32c.value(rest + body) ^ (1 if crc_error else 0)
    return struct.pack(">qiibI", base_offset, len(rest) + len(body) + 9, -1, magic, checksum) + rest + body


def headers(data: bytes | None) -> Iterator[dict[str, Any]]:
    """The whole batches in fetched bytes, as a transcript shows them."""
    position = 0
    while data is not None and len(data) - position >= _HEADER.size:
        fields = _HEADER.unpack_from(data, position)
        base, length, _, _, _, attributes, last_delta, _, _, producer_id, epoch, sequence, count = fields
        if position + length + 12 > len(data):
            return
        shown = {"offsets": [base, base + last_delta], "producer_id": producer_id, "producer_epoch": epoch}
        shown |= {"sequence": sequence, "count": count, "transactional": bool(attributes & TRANSACTIONAL)}
        if attributes & CONTROL:
            control_type, coordinator_epoch = _marker(data, position)
            shown |= {"marker": control_type, "coordinator_epoch": coordinator_epoch}
        yield shown
        position += length + 12


def _marker(data: bytes, position: int) -> tuple[str, int]:
    # A marker written by a broker has one record whose lengths all fit one byte: key at 66, value at 71.
    (kind,) = struct.unpack_from(">h", data, position + 68)
    (coordinator_epoch,) = struct.unpack_from(">i", data, position + 73)
    return {0: "ABORT", 1: "COMMIT"}.get(kind, str(kind)), coordinator_epoch
