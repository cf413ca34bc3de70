"""Kafka's murmur2 for whole key columns: the same partition as every other client chooses for the same key."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncelog.client.column_encoder import as_binary, offsets_of

_M: Final = np.uint32(0x5BD1E995)
_SEED: Final = np.uint32(0x9747B28C)


def murmur2_column(keys: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.uint32]:
    """The hash of every key, four bytes of all keys at a time. Nulls hash like empty keys."""
    column = as_binary(keys, "key")
    bounds = offsets_of(column)
    data = column.buffers()[2]
    # Padding lets the last bytes of the last key be read as a whole word.
    padded = np.zeros(int(bounds[-1]) + 4, np.uint8)
    if data is not None and len(padded) > 4:
        padded[:-4] = np.frombuffer(data, np.uint8, count=int(bounds[-1]))
    words: npt.NDArray[np.uint32] = np.ndarray((len(padded) - 3,), np.dtype("<u4"), padded, 0, (1,))
    at = bounds[:-1].copy()
    sizes = np.diff(bounds)
    with np.errstate(over="ignore"):
        return _mix(words, at, sizes)


def _mix(words: npt.NDArray[np.uint32], at: Any, sizes: Any) -> npt.NDArray[np.uint32]:
    value = _SEED ^ sizes.astype(np.uint32)
    rows = np.flatnonzero(sizes >= 4)
    done = 0
    while len(rows):
        k = words[at[rows] + done] * _M
        k = (k ^ (k >> np.uint32(24))) * _M
        value[rows] = (value[rows] * _M) ^ k
        done += 4
        rows = rows[sizes[rows] >= done + 4]
    left = sizes & 3
    rows = np.flatnonzero(left)
    if len(rows):
        mask = (np.uint32(1) << (8 * left[rows]).astype(np.uint32)) - np.uint32(1)
        value[rows] = (value[rows] ^ (words[at[rows] + (sizes[rows] & ~3)] & mask)) * _M
    value = (value ^ (value >> np.uint32(13))) * _M
    mixed: npt.NDArray[np.uint32] = value ^ (value >> np.uint32(15))
    return mixed


def partition_column(keys: pa.Array | pa.ChunkedArray, partition_count: int) -> npt.NDArray[np.int32]:
    """The partition of every key, as Kafka's default partitioner chooses it. Null keys get -1: the caller's choice."""
    partitions = ((murmur2_column(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(partition_count)).astype(np.int32)
    column = as_binary(keys, "key")
    if column.null_count:
        partitions[np.asarray(column.is_null())] = -1
    return partitions
