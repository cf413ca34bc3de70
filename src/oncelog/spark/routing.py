"""Which partition each row goes to, on the executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oncelog.client.columns import partition_column
from oncelog.spark.worker_client import worker_client

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.spark.write_job import TaskOrders


KEYLESS_RUN = 1000
"""Rows without a key go to one partition for this many rows, then to the next: few, full batches."""


class RowError(ValueError):
    """A row that no topic can take; the text says which and why."""


def partition_numbers(orders: TaskOrders, columns: dict[str, Any]) -> pa.Array:
    """One number per row: the row's own partition where it has one, else that of Kafka's partitioner."""
    import pyarrow as pa

    topics = columns.get("topic")
    if topics is None:
        return pa.array(_of_topic(orders, orders.topic or "", orders.partition_count, columns))
    if topics.null_count:
        raise RowError("a row has no topic: give every row one, or give the sink a topic for the others")
    numbers = np.empty(len(topics), dtype=np.int32)
    for name in topics.unique().to_pylist():
        chosen = pa.compute.equal(topics, name)
        rows = np.flatnonzero(chosen.to_numpy(zero_copy_only=False))
        part = {column: values.filter(chosen) for column, values in columns.items() if column != "topic"}
        numbers[rows] = _of_topic(orders, name, _count(orders, name), part, len(rows))
    return pa.array(numbers)


def _count(orders: TaskOrders, topic: str) -> int:
    if topic == orders.topic:
        return orders.partition_count
    return worker_client(orders.client).partition_count(topic)


def _of_topic(
    orders: TaskOrders, topic: str, count: int, columns: dict[str, Any], rows: int | None = None
) -> np.ndarray[Any, np.dtype[np.int32]]:
    keys = columns.get("key")
    given = columns.get("partition")
    if keys is not None:
        numbers = partition_column(keys, count)
    else:
        numbers = np.full(len(given) if given is not None else (rows or 0), -1, np.int32)
    keyless = np.flatnonzero(numbers < 0)
    numbers[keyless] = (np.arange(len(keyless)) // KEYLESS_RUN + orders.first_partition) % count
    if given is not None:
        valid = given.is_valid().to_numpy(zero_copy_only=False)
        wanted = given.fill_null(0).to_numpy(zero_copy_only=False)
        wrong = valid & ((wanted < 0) | (wanted >= count))
        if wrong.any():
            raise RowError(f"a row wants partition {wanted[wrong][0]} of topic {topic}, which has {count}")
        numbers = np.where(valid, wanted, numbers).astype(np.int32)
    return numbers
