"""Records one by one into a batch, for producers that are given single records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oncelog.client.encoded_batch import EncodedBatch
from oncelog.protocol import compression
from oncelog.protocol.batch import HEADER_BYTES
from oncelog.protocol.primitives import append_varlong

Header = tuple[bytes, bytes | None]

RECORD_OVERHEAD_BYTES_MAX: Final = 21
"""Length, attributes, deltas and sizes of one record without headers, at their longest."""
_CACHED: Final = 1 << 14


def _varint(value: int) -> bytes:
    out = bytearray()
    append_varlong(out, value)
    return bytes(out)


_SMALL: Final = tuple(_varint(value) for value in range(_CACHED))
_NULL: Final = _varint(-1)


def varint(value: int) -> bytes:
    return _SMALL[value] if 0 <= value < _CACHED else _varint(value)


def record_size_max(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """An upper bound of what a record takes in a batch."""
    size = RECORD_OVERHEAD_BYTES_MAX + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += 10 + len(name) + len(content or b"")
    return size


class RecordBatchBuilder:
    """Grows by `append` until the caller finds it full; `build` may be called once or many times."""

    __slots__ = ("_base_timestamp", "_max_timestamp", "_parts", "records_count", "size_bytes")

    def __init__(self) -> None:
        self.records_count = 0
        self.size_bytes = HEADER_BYTES
        self._parts: list[bytes] = []
        self._base_timestamp = -1
        self._max_timestamp = -1

    def append(self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
        """Returns the number of the record within the batch."""
        index = self.records_count
        if not index:
            self._base_timestamp = self._max_timestamp = timestamp_ms
        elif timestamp_ms > self._max_timestamp:
            self._max_timestamp = timestamp_ms
        body = b"".join(
            (
                b"\0",
                varint(timestamp_ms - self._base_timestamp),
                varint(index),
                _NULL if key is None else varint(len(key)),
                key or b"",
                _NULL if value is None else varint(len(value)),
                value or b"",
                _encode_headers(headers) if headers else b"\0",
            )
        )
        length = varint(len(body))
        self._parts += (length, body)
        self.size_bytes += len(length) + len(body)
        self.records_count = index + 1
        return index

    def build(self, codec: int) -> EncodedBatch:
        section = b"".join(self._parts)
        body = compression.compress(codec, section) if codec else section
        return EncodedBatch(self.records_count, self._base_timestamp, self._max_timestamp, codec, body)


def _encode_headers(headers: Sequence[Header]) -> bytes:
    parts = [varint(len(headers))]
    for name, content in headers:
        parts += (varint(len(name)), name)
        parts += (_NULL,) if content is None else (varint(len(content)), content)
    return b"".join(parts)
