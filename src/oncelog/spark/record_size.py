"""How large the rows of an Arrow batch are as records, and which of them have headers no record can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

RECORD_OVERHEAD_BYTES = 97
"""At most: 61 for the header of a batch, 21 for a record's own fields, and 5 for each of the lengths of key and value
and the number of headers. Kafka's producer, too, judges a record by the most it could take in a batch of its own."""
HEADER_OVERHEAD_BYTES = 10
"""The lengths of its key and its value, at most."""


def record_sizes(batch: pa.RecordBatch) -> Int64s:
    """For each row the bytes of a batch that holds nothing else, at most; compression is not counted on."""
    sizes = np.full(batch.num_rows, RECORD_OVERHEAD_BYTES, np.int64)
    for name in ("key", "value"):
        if name in batch.schema.names:
            sizes += _lengths(batch.column(name))
    if "headers" in batch.schema.names:
        names, values = _headers(batch)
        sizes += _per_row(batch, _lengths(names) + _lengths(values) + HEADER_OVERHEAD_BYTES)
    return sizes


def has_nameless_header(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """For each row whether one of its headers is null or has a null key."""
    if "headers" not in batch.schema.names:
        return np.zeros(batch.num_rows, np.bool_)
    names, _ = _headers(batch)
    return _per_row(batch, names.is_null().to_numpy(zero_copy_only=False).astype(np.int64)) > 0


def _lengths(column: pa.Array) -> Int64s:
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    lengths: Int64s = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _headers(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """Keys and values of all headers of all rows, null where the header itself is."""
    names, values = batch.column("headers").flatten().flatten()
    return names, values


def _per_row(batch: pa.RecordBatch, of_headers: Int64s) -> Int64s:
    """The sum of a number of each header, by row."""
    counts = pc.fill_null(pc.list_value_length(batch.column("headers")), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(counts)
    sums = np.concatenate(([0], np.cumsum(of_headers)))
    per_row: Int64s = sums[ends] - sums[ends - counts]
    return per_row
