"""Which partition each row goes to, worked out on the executors; and which rows no topic can take."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.client.columns import partition_column
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


REASONS: dict[Poison, str] = {
    Poison.NO_TOPIC: "the row has no topic, and the sink has none for rows without",
    Poison.UNKNOWN_TOPIC: "its topic does not exist",
    Poison.WRONG_PARTITION: "its topic has no such partition",
    Poison.TOO_LARGE: "key and value together are larger than max_request_size",
}


class RowError(ValueError):
    """A row that no topic can take; the text says which and why."""


def partition_numbers(orders: TaskOrders, columns: dict[str, Any], first_keyless: int = 0) -> Int32s:
    """One number per row: the row's own partition where it has one, else that of Kafka's partitioner, or a Poison.

    `columns` are `size`, and of `key`, `topic` and `partition` those that the rows have. Rows without a key go round
    the partitions beginning with `first_keyless`. Raises RowError for the first Poison when there is no place for it.
    """
    topics = columns.pop("topic", None)
    if topics is None:
        numbers = _of_topic(orders.partition_count, columns, first_keyless)
    else:
        numbers = np.full(len(topics), Poison.NO_TOPIC, np.int32)
        for name in topics.drop_null().unique().to_pylist():
            chosen = pc.fill_null(pc.equal(topics, name), False)
            part = {column: values.filter(chosen) for column, values in columns.items()}
            rows = chosen.to_numpy(zero_copy_only=False)
            numbers[rows] = _of_topic(_count(orders, name), part, first_keyless)
    numbers[columns["size"].to_numpy(zero_copy_only=False) > orders.max_request_size] = Poison.TOO_LARGE
    if not orders.dead_letter_topic:
        _refuse_poison(orders, numbers, topics, columns)
    return numbers


def _count(orders: TaskOrders, topic: str) -> int:
    """0 for a topic that does not exist."""
    if topic == orders.topic:
        return orders.partition_count
    return worker_client(orders.client).partition_count(topic)


def _of_topic(count: int, columns: dict[str, Any], first_keyless: int) -> Int32s:
    rows = len(columns["size"])
    if count == 0:
        return np.full(rows, Poison.UNKNOWN_TOPIC, np.int32)
    keys, given = columns.get("key"), columns.get("partition")
    numbers = np.full(rows, -1, np.int32) if keys is None else partition_column(keys, count)
    keyless = np.flatnonzero(numbers < 0)
    numbers[keyless] = (np.arange(len(keyless)) // KEYLESS_RUN + first_keyless) % count
    if given is not None:
        has_own = given.is_valid().to_numpy(zero_copy_only=False)
        wanted = given.fill_null(0).to_numpy(zero_copy_only=False)
        numbers = np.where(has_own, wanted, numbers).astype(np.int32)
        numbers[has_own & ((wanted < 0) | (wanted >= count))] = Poison.WRONG_PARTITION
    return numbers


def _refuse_poison(orders: TaskOrders, numbers: Int32s, topics: Any, columns: dict[str, Any]) -> None:
    poisoned = np.flatnonzero(numbers < 0)
    if not len(poisoned):
        return
    row = int(poisoned[0])
    kind = Poison(int(numbers[row]))
    topic = orders.topic if topics is None else topics[row].as_py()
    details = {"topic": topic, "size": columns["size"][row].as_py()}
    if "partition" in columns:
        details["partition"] = columns["partition"][row].as_py()
    about = ", ".join(f"{name} {what}" for name, what in details.items())
    raise RowError(
        f"a row cannot be written: {REASONS[kind]} ({about}). Correct the rows, or give the sink a dead_letter_topic "
        "for such rows"
    )


def refuse_large(orders: TaskOrders, batch: pa.RecordBatch) -> None:
    """For rows that may go anywhere: size is all that can be wrong with them."""
    largest = pc.max(pc.binary_length(batch.column("value"))).as_py() or 0
    if largest > orders.max_request_size:
        raise RowError(
            f"a row cannot be written: {REASONS[Poison.TOO_LARGE]} ({largest} bytes, allowed are "
            f"{orders.max_request_size}). Make it smaller, give the sink a dead_letter_topic for such rows, or raise "
            "max_request_size and the broker's message.max.bytes"
        )
