"""Rows of columns to their partitions: the batches of each, in the order of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncelog.client.column_encoder import check_rows, encode_columns, row_timestamps
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
    stamps = row_timestamps(timestamp_ms, len(value))
    check_rows(len(value), key=key, headers=headers, timestamp=stamps)  # what is not of a row would be left out
    if bool((partitions < 0).any()):
        partitions[partitions < 0] = sticky()
    return [
        (
            number,
            encode_columns(
                value.take(rows),
                key=key.take(rows),
                headers=None if headers is None else headers.take(rows),
                timestamp_ms=stamps[np.asarray(rows)],
                codec=codec,
            ),
        )
        for number, rows in group_rows(partitions)
    ]


def group_rows(numbers: npt.NDArray[Any]) -> Iterator[tuple[int, pa.Array]]:
    """The rows that have the same number, in their order, by number."""
    if len(numbers):
        order = np.argsort(numbers, kind="stable")
        bounds = np.flatnonzero(np.diff(numbers[order])) + 1
        for rows in np.split(order, bounds):
            yield int(numbers[rows[0]]), pa.array(rows)
