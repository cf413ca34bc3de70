"""Rows of columns to their partitions: the batches of each, in the order of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from oncelog.client.column_encoder import encode_columns
from oncelog.client.column_hashing import partition_column
from oncelog.client.encoded_batch import EncodedBatch


def encode_by_partition(
    value: Any,
    partition_count: int,
    *,
    partition: int | None,
    sticky: Callable[[], int],
    timestamp_ms: Any,
    key: Any = None,
    headers: Any = None,
    codec: int = 0,
) -> list[tuple[int, list[EncodedBatch]]]:
    """Rows without a key all go to the partition that `sticky` chooses."""
    if partition is not None or key is None:
        number = sticky() if partition is None else partition
        return [(number, encode_columns(value, key=key, headers=headers, timestamp_ms=timestamp_ms, codec=codec))]
    partitions = partition_column(key, partition_count)
    if bool((partitions < 0).any()):
        partitions[partitions < 0] = sticky()
    order = np.argsort(partitions, kind="stable")
    present, starts = np.unique(partitions[order], return_index=True)
    bounds = [*starts.tolist(), len(order)]
    encoded = []
    for index, number in enumerate(present.tolist()):
        rows = pa.array(order[bounds[index] : bounds[index + 1]])
        encoded.append(
            (
                number,
                encode_columns(
                    value.take(rows),
                    key=key.take(rows),
                    headers=None if headers is None else headers.take(rows),
                    timestamp_ms=_rows_of(timestamp_ms, rows),
                    codec=codec,
                ),
            )
        )
    return encoded


def _rows_of(timestamp_ms: Any, rows: pa.Array) -> Any:
    if isinstance(timestamp_ms, int):
        return timestamp_ms
    if isinstance(timestamp_ms, pa.Array | pa.ChunkedArray):
        return timestamp_ms.take(rows)
    return np.asarray(timestamp_ms)[np.asarray(rows)]
