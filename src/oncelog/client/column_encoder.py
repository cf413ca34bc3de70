"""Arrow columns to record batches, without a Python loop per record.

Theory of operation. A record is a sequence of stretches: small ones that numpy computes for all records at once
(lengths and deltas as varints) and the bytes of key, value and headers, which stand in Arrow arrays already. All
stretches are put into one array, group by group, and Arrow's `take` brings them into the order of the wire: what it
returns is the records section of every batch, back to back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.client.encoded_batch import EncodedBatch
from oncelog.core.codec import Codec
from oncelog.core.invariant import invariant
from oncelog.protocol import compression

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

BATCH_BYTES: Final = 512 * 1024
"""The size of an encoded batch, uncompressed: half of Kafka's default `message.max.bytes`, so it fits everywhere."""
_RECORD_OVERHEAD_BYTES_MAX: Final = 32
_ROWS_BYTES_MAX: Final = 1 << 30
"""Columns larger than this are encoded in several passes: Arrow's offsets have 32 bits."""


def encode_columns(
    value: pa.Array | pa.ChunkedArray,
    *,
    key: pa.Array | pa.ChunkedArray | None = None,
    headers: pa.Array | pa.ChunkedArray | None = None,
    timestamp_ms: int | npt.NDArray[np.int64] | pa.Array,
    codec: int = Codec.NONE,
    batch_bytes: int = BATCH_BYTES,
) -> list[EncodedBatch]:
    """The rows as batches of about `batch_bytes`, in order; a row that is larger gets a batch of its own.

    `value` and `key` are binary or string columns, `headers` is list<struct<key, value>>, `timestamp_ms` is one number
    for all rows or one per row (an Arrow timestamp column of any unit will do).
    """
    values = as_binary(value)
    columns = _Columns(
        values,
        None if key is None else as_binary(key, "key"),
        None if headers is None else _header_column(headers),
        row_timestamps(timestamp_ms, len(values)),
    )
    batches: list[EncodedBatch] = []
    for rows in columns.passes():
        batches += _encode(rows, codec, batch_bytes)
    return batches


def check_rows(count: int, **columns: Any) -> None:
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise ValueError(f"the {name} column has {len(column)} rows, the value column {count}")


class _Columns:
    def __init__(self, value: pa.Array, key: pa.Array | None, headers: pa.Array | None, timestamps: Ints) -> None:
        check_rows(len(value), key=key, headers=headers, timestamp=timestamps)
        self.value = value
        self.key = None if key is None or key.null_count == len(key) else key
        self.headers = headers if headers is not None and _has_headers(headers) else None
        self.timestamps = timestamps

    def __len__(self) -> int:
        return len(self.value)

    def slice(self, start: int, count: int) -> _Columns:
        return _Columns(
            self.value.slice(start, count),
            None if self.key is None else self.key.slice(start, count),
            None if self.headers is None else self.headers.slice(start, count),
            self.timestamps[start : start + count],
        )

    def passes(self) -> list[_Columns]:
        parts = (self.value, self.key, self.headers)
        size = sum(part.get_total_buffer_size() for part in parts if part is not None)
        passes = 1 + size // _ROWS_BYTES_MAX
        step = -(-len(self) // passes) or 1
        return [self.slice(start, step) for start in range(0, len(self), step)]


def _encode(rows: _Columns, codec: int, batch_bytes: int) -> list[EncodedBatch]:
    values, keys = _sizes(rows.value), None if rows.key is None else _sizes(rows.key)
    header_counts, header_blobs = _header_sections(rows.headers, len(rows))
    header_sizes = np.ones(len(rows), np.int64) if header_blobs is None else _sizes(header_blobs)
    body = np.maximum(values, 0) + header_sizes + (0 if keys is None else np.maximum(keys, 0))
    bounds = _split(body + _RECORD_OVERHEAD_BYTES_MAX, batch_bytes)
    starts = np.asarray(bounds[:-1], np.int64)
    per_batch = np.diff(bounds)
    offset_deltas = np.arange(len(rows), dtype=np.int64) - np.repeat(starts, per_batch)
    timestamp_deltas = rows.timestamps - np.repeat(rows.timestamps[starts], per_batch)
    key_field = _zigzag(np.full(len(rows), -1, np.int64) if keys is None else keys)
    fields = [_zigzag(timestamp_deltas), _zigzag(offset_deltas), key_field]
    value_field = _zigzag(values)
    lengths = 1 + body + sum((_varint_sizes(field) for field in fields), _varint_sizes(value_field))
    if header_blobs is not None:
        # The section of a record with headers starts with their number, which is not part of the blob.
        lengths += _varint_sizes(_zigzag(header_counts))
    section, ends = _assemble(rows, lengths, fields, value_field, header_counts, header_blobs)
    return _cut(rows, section, np.concatenate(([0], ends)), bounds, codec)


def _split(sizes: Ints, batch_bytes: int) -> list[int]:
    """First row of each batch, and the number of rows at the end."""
    bounds = [0]
    total = np.cumsum(sizes)
    while bounds[-1] < len(sizes):
        first = bounds[-1]
        used = int(total[first - 1]) if first else 0
        bounds.append(max(first + 1, int(np.searchsorted(total, used + batch_bytes, side="right"))))
    return bounds


def _assemble(
    rows: _Columns,
    lengths: Ints,
    fields: list[npt.NDArray[np.uint64]],
    value_field: npt.NDArray[np.uint64],
    header_counts: Ints,
    header_blobs: pa.Array | None,
) -> tuple[bytes, Ints]:
    """The records of all rows back to back, and where each one ends."""
    count = len(rows)
    zero = np.zeros((count, 1), np.uint8)
    every = np.ones((count, 1), bool)
    length_part, length_mask = _varint_bytes(_zigzag(lengths))
    parts, masks = [length_part, zero], [length_mask, every]
    for field in fields:
        part, mask = _varint_bytes(field)
        parts.append(part)
        masks.append(mask)
    value_part, value_mask = _varint_bytes(value_field)
    groups: list[pa.Array]
    if rows.key is None:
        groups = [_stretches([*parts, value_part], [*masks, value_mask]), rows.value]
    else:
        groups = [_stretches(parts, masks), rows.key, _stretches([value_part], [value_mask]), rows.value]
    if header_blobs is None:
        groups.append(_stretches([zero], [every]))
    else:
        number, number_mask = _varint_bytes(_zigzag(header_counts))
        groups += [_stretches([number], [number_mask]), header_blobs]
    joined = _interleave(groups)
    ends = offsets_of(joined)[len(groups) :: len(groups)]
    return _data(joined), ends


def _interleave(groups: Sequence[pa.Array]) -> pa.Array:
    """First of each group, second of each group, and so on."""
    count, width = len(groups[0]), len(groups)
    pool = pa.concat_arrays(list(groups))
    order = (np.arange(count, dtype=np.int64)[:, None] + count * np.arange(width, dtype=np.int64)).reshape(-1)
    return pool.take(pa.array(order))


def _cut(rows: _Columns, section: bytes, at: Ints, bounds: list[int], codec: int) -> list[EncodedBatch]:
    view = memoryview(section)
    batches = []
    for first, last in pairwise(bounds):
        records = view[int(at[first]) : int(at[last])]
        body = compression.compress(codec, records) if codec else bytes(records)
        stamps = rows.timestamps[first:last]
        batches.append(EncodedBatch(last - first, int(stamps[0]), int(stamps.max()), codec, body))
    return batches


# Headers


def _has_headers(headers: pa.Array) -> bool:
    return len(headers) > 0 and len(headers.flatten()) > 0


def _header_sections(headers: pa.Array | None, count: int) -> tuple[Ints, pa.Array | None]:
    """How many headers each row has, and their bytes without that number."""
    if headers is None:
        return np.zeros(count, np.int64), None
    items = headers.flatten()
    counts = np.asarray(pc.list_value_length(headers).fill_null(0)).astype(np.int64)
    names, values = (as_binary(items.field(i)) for i in range(2))
    if names.null_count:
        raise ValueError("a header has no key")
    name_part, name_mask = _varint_bytes(_zigzag(_sizes(names)))
    value_part, value_mask = _varint_bytes(_zigzag(_sizes(values)))
    groups = [_stretches([name_part], [name_mask]), names, _stretches([value_part], [value_mask]), values]
    joined = _interleave(groups)
    # The headers of one row follow each other, so their bytes are one stretch.
    ends = np.concatenate(([0], np.cumsum(counts)))
    bounds = offsets_of(joined)[ends * len(groups)].astype(np.int32)
    blobs = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), joined.buffers()[2]])
    return counts, blobs


# Varints and stretches


def _zigzag(values: Ints) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).astype(np.uint64)


def _varint_sizes(values: npt.NDArray[np.uint64]) -> Ints:
    sizes = np.ones(len(values), np.int64)
    largest = int(values.max(initial=0))
    for bits in range(7, 64, 7):
        if largest < 1 << bits:
            break
        sizes += values >= np.uint64(1 << bits)
    return sizes


def _varint_bytes(values: npt.NDArray[np.uint64]) -> tuple[Bytes, npt.NDArray[np.bool_]]:
    """One row of bytes per value, as wide as the longest, and which of them are used."""
    sizes = _varint_sizes(values)
    width = int(sizes.max(initial=1))
    if width == 1:
        return values.astype(np.uint8)[:, None], np.ones((len(values), 1), bool)
    places = np.arange(width)
    used = places < sizes[:, None]
    table = ((values[:, None] >> (7 * places).astype(np.uint64)) & np.uint64(0x7F)).astype(np.uint8)
    table[places < sizes[:, None] - 1] |= 0x80
    return table, used


def _stretches(parts: list[Bytes], masks: list[npt.NDArray[np.bool_]]) -> pa.Array:
    """One byte string per row: the used bytes of all parts."""
    table, used = np.hstack(parts), np.hstack(masks)
    data = table.reshape(-1) if bool(used.all()) else table[used]
    bounds = np.zeros(len(table) + 1, np.int32)
    np.cumsum(used.sum(axis=1), out=bounds[1:])
    return pa.Array.from_buffers(pa.binary(), len(table), [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def _sizes(column: pa.Array) -> Ints:
    """Length of each element; -1 for null."""
    sizes = np.diff(offsets_of(column))
    if column.null_count:
        sizes[np.asarray(column.is_null())] = -1
    return sizes


def offsets_of(column: pa.Array) -> Ints:
    raw = np.frombuffer(column.buffers()[1], np.int32, count=len(column) + 1, offset=4 * column.offset)
    return raw.astype(np.int64)


def _data(column: pa.Array) -> bytes:
    bounds = offsets_of(column)
    invariant(bounds[0] == 0, "a fresh array starts at its first byte")
    return memoryview(column.buffers()[2])[: int(bounds[-1])].tobytes()


def _one_array(column: Any, name: str) -> pa.Array:
    if not isinstance(column, pa.Array | pa.ChunkedArray):
        kind = type(column).__name__
        raise TypeError(f"the {name} column is a {kind}: give an Arrow array, as pyarrow.array makes it")
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


def as_binary(column: Any, name: str = "value") -> pa.Array:
    array = _one_array(column, name)
    if pa.types.is_binary(array.type):
        return array
    try:
        return array.cast(pa.binary())
    except pa.ArrowNotImplementedError:
        raise TypeError(f"the {name} column is of {array.type}: cast it to binary or string") from None


def _header_column(column: Any) -> pa.Array:
    array = _one_array(column, "headers")
    kind = array.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not pa.types.is_struct(kind.value_type) or kind.value_type.num_fields != 2:
        raise TypeError(f"the headers column is of {kind}: it must be of list<struct<key, value>>")
    return array


def row_timestamps(timestamp_ms: Any, count: int) -> Ints:
    """The timestamp of every row, in milliseconds."""
    if isinstance(timestamp_ms, int):
        return np.full(count, timestamp_ms, np.int64)
    if isinstance(timestamp_ms, str | bytes) or not hasattr(timestamp_ms, "__len__"):
        kind = type(timestamp_ms).__name__
        raise TypeError(f"timestamp_ms is a {kind}: give whole milliseconds, one number for all rows or one per row")
    if isinstance(timestamp_ms, pa.Array | pa.ChunkedArray):
        column = _one_array(timestamp_ms, "timestamp")
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
        return np.asarray(column.cast(pa.int64()))
    return np.asarray(timestamp_ms, np.int64)
