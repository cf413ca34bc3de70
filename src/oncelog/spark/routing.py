"""Which partition each row goes to, worked out on the executors; and which rows no topic can take."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.client.columns import partition_column
from oncelog.spark.record_size import has_nameless_header, record_sizes
from oncelog.spark.worker_client import worker_client

if TYPE_CHECKING:
    import numpy.typing as npt

    from oncelog.spark.write_job import TaskOrders

    Int32s = npt.NDArray[np.int32]

KEYLESS_RUN = 1000
"""Rows without a key go to one partition for this many rows, then to the next: few, full batches."""


class Poison(IntEnum):
    """In place of a partition number: why no topic can take the row."""

    NO_TOPIC = -1
    UNKNOWN_TOPIC = -2
    WRONG_PARTITION = -3
    TOO_LARGE = -4
    NAMELESS_HEADER = -5
    INTERNAL_TOPIC = -6
    NO_KEY = -7


REASONS: dict[Poison, str] = {
    Poison.NO_TOPIC: "the row has no topic, and the sink has none for rows without",
    Poison.UNKNOWN_TOPIC: "its topic does not exist",
    Poison.WRONG_PARTITION: "its topic has no such partition",
    Poison.TOO_LARGE: "as a record, with key, value and headers, it is larger than max_request_size",
    Poison.NAMELESS_HEADER: "one of its headers is null or has no key",
    Poison.INTERNAL_TOPIC: "its topic is the cluster's own",
    Poison.NO_KEY: "it has no key, and its topic is compacted",
}


class RowError(ValueError):
    """A row that no topic can take; the text says which and why."""


def partition_numbers(orders: TaskOrders, batch: pa.RecordBatch, first_keyless: int = 0) -> Int32s:
    """One number per row: the row's own partition where it has one, else that of Kafka's partitioner, or a Poison.

    Of `key`, `topic`, `partition` and `headers` the rows may have any. Rows without a key go round the partitions
    beginning with `first_keyless`. Raises RowError for the first Poison when there is no place for it.
    """
    columns = {name: batch.column(name) for name in ("value", "key", "partition") if name in batch.schema.names}
    if "topic" not in batch.schema.names:
        numbers = _of_topic(orders, orders.topic or "", columns, first_keyless)
    else:
        topics = batch.column("topic")
        numbers = np.full(len(topics), Poison.NO_TOPIC, np.int32)
        for name in topics.drop_null().unique().to_pylist():
            chosen = pc.fill_null(pc.equal(topics, name), False)
            part = {column: values.filter(chosen) for column, values in columns.items()}
            numbers[chosen.to_numpy(zero_copy_only=False)] = _of_topic(orders, name, part, first_keyless)
    sizes = record_sizes(batch)
    numbers[has_nameless_header(batch)] = Poison.NAMELESS_HEADER
    numbers[sizes > orders.max_request_size] = Poison.TOO_LARGE
    if not orders.dead_letter_topic:
        _refuse_poison(orders, numbers, sizes, batch)
    return numbers


def _of_topic(orders: TaskOrders, topic: str, columns: dict[str, pa.Array], first_keyless: int) -> Int32s:
    rows = len(columns["value"])
    client = worker_client(orders.client)
    count = orders.partition_count if topic == orders.topic else client.partition_count(topic)
    if count == 0:
        return np.full(rows, Poison.UNKNOWN_TOPIC, np.int32)
    if topic != orders.topic and client.is_internal(topic):
        return np.full(rows, Poison.INTERNAL_TOPIC, np.int32)
    keys, given = columns.get("key"), columns.get("partition")
    numbers = np.full(rows, -1, np.int32) if keys is None else partition_column(keys, count)
    keyless = np.flatnonzero(numbers < 0)
    numbers[keyless] = (np.arange(len(keyless)) // KEYLESS_RUN + first_keyless) % count
    if given is not None:
        has_own = given.is_valid().to_numpy(zero_copy_only=False)
        wanted = given.fill_null(0).to_numpy(zero_copy_only=False)
        numbers = np.where(has_own, wanted, numbers).astype(np.int32)
        numbers[has_own & ((wanted < 0) | (wanted >= count))] = Poison.WRONG_PARTITION
    if len(keyless) and client.is_compacted(topic):
        numbers[keyless] = Poison.NO_KEY
    return numbers


def _refuse_poison(orders: TaskOrders, numbers: Int32s, sizes: npt.NDArray[np.int64], batch: pa.RecordBatch) -> None:
    poisoned = np.flatnonzero(numbers < 0)
    if not len(poisoned):
        return
    row = int(poisoned[0])
    kind = Poison(int(numbers[row]))
    names = batch.schema.names
    topic = batch.column("topic")[row].as_py() if "topic" in names else orders.topic
    about = f"topic {topic}, {sizes[row]} bytes"
    if "partition" in names:
        about += f", partition {batch.column('partition')[row].as_py()}"
    if kind is Poison.TOO_LARGE:
        about += f", allowed are {orders.max_request_size}: raise that and the broker's message.max.bytes, if need be"
    raise RowError(
        f"a row cannot be written: {REASONS[kind]} ({about}). Correct the rows, or give the sink a dead_letter_topic "
        "for such rows"
    )
