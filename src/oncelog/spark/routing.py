"""Which partition each row goes to, worked out on the executors; and which rows no topic can take."""

from __future__ import annotations

import time
from collections.abc import Collection
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.client import EncodedBatch, TopicFacts, worker_client
from oncelog.client.columns import encode_columns, partition_column
from oncelog.core.codec import Codec
from oncelog.spark.record_size import has_nameless_header, record_sizes

if TYPE_CHECKING:
    import numpy.typing as npt

    from oncelog.spark.write_job import TaskOrders

    Int32s = npt.NDArray[np.int32]

KEYLESS_RUN = 1000
"""Rows without a key go to one partition for this many rows, then to the next: few, full batches."""


class RowProblem(IntEnum):
    """Why no topic can take a row. The numbers are negative: they are used in place of a partition number."""

    NO_TOPIC = -1
    UNKNOWN_TOPIC = -2
    WRONG_PARTITION = -3
    TOO_LARGE = -4
    NAMELESS_HEADER = -5
    INTERNAL_TOPIC = -6
    NO_KEY = -7
    TOO_LARGE_FOR_TOPIC = -8


REASONS: dict[RowProblem, str] = {
    RowProblem.NO_TOPIC: "the row has no topic, and the sink has none for rows without",
    RowProblem.UNKNOWN_TOPIC: "its topic does not exist",
    RowProblem.WRONG_PARTITION: "its topic has no such partition",
    RowProblem.TOO_LARGE: "as a record, with key, value and headers, it is larger than max_request_size",
    RowProblem.NAMELESS_HEADER: "one of its headers is null or has no key",
    RowProblem.INTERNAL_TOPIC: "its topic is the cluster's own",
    RowProblem.NO_KEY: "it has no key, and its topic is compacted",
    RowProblem.TOO_LARGE_FOR_TOPIC: "as a record, with key, value and headers, it is larger than its topic takes",
}


class RowError(ValueError):
    """A row that no topic can take; the text says which and why."""


def partition_numbers(orders: TaskOrders, batch: pa.RecordBatch, first_keyless: int = 0) -> Int32s:
    """One number per row: the row's own partition where it has one, else that of Kafka's partitioner, or a RowProblem.

    Of `key`, `topic`, `partition` and `headers` the rows may have any. Rows without a key go round the partitions
    beginning with `first_keyless`. Raises RowError for the first RowProblem when there is no place for it.
    """
    columns = {name: batch.column(name) for name in ("value", "key", "partition") if name in batch.schema.names}
    sizes = record_sizes(batch)
    largest = np.full(batch.num_rows, orders.max_request_size, np.int64)
    if "topic" not in batch.schema.names:
        facts = facts_of(orders, [orders.topic or ""]).get(orders.topic or "")
        numbers = _of_topic(facts, columns, first_keyless)
        _note_largest(largest, slice(None), facts)
    else:
        topics = batch.column("topic")
        numbers = np.full(len(topics), RowProblem.NO_TOPIC, np.int32)
        names = topics.drop_null().unique().to_pylist()
        found = facts_of(orders, names)
        for name in names:
            chosen = pc.fill_null(pc.equal(topics, name), False)
            part = {column: values.filter(chosen) for column, values in columns.items()}
            rows = chosen.to_numpy(zero_copy_only=False)
            numbers[rows] = _of_topic(found.get(name), part, first_keyless)
            _note_largest(largest, rows, found.get(name))
    numbers[has_nameless_header(batch)] = RowProblem.NAMELESS_HEADER
    numbers[sizes > orders.max_request_size] = RowProblem.TOO_LARGE
    doubtful = np.flatnonzero((numbers >= 0) & (sizes > largest))
    if len(doubtful):
        sent_bytes = _sent_sizes(orders, batch.take(pa.array(doubtful)))
        numbers[doubtful[sent_bytes > largest[doubtful]]] = RowProblem.TOO_LARGE_FOR_TOPIC
    if not orders.dead_letter_topic:
        _refuse_bad_row(orders, numbers, sizes, largest, batch)
    return numbers


def facts_of(orders: TaskOrders, topics: Collection[str]) -> dict[str, TopicFacts]:
    """The driver has looked up the sink's own topics. Topics that rows name are looked up here."""
    known = orders.transaction.topics
    others = [name for name in topics if name not in known]
    return {**known, **worker_client(orders.client).topic_facts(others)} if others else dict(known)


def _of_topic(facts: TopicFacts | None, columns: dict[str, pa.Array], first_keyless: int) -> Int32s:
    rows = len(columns["value"])
    if facts is None or not facts.partitions:
        return np.full(rows, RowProblem.UNKNOWN_TOPIC, np.int32)
    if facts.is_internal:
        return np.full(rows, RowProblem.INTERNAL_TOPIC, np.int32)
    keys, given = columns.get("key"), columns.get("partition")
    numbers, keyless = by_key(keys, rows, facts.partitions, first_keyless)
    if given is not None:
        has_own = given.is_valid().to_numpy(zero_copy_only=False)
        wanted = given.fill_null(0).to_numpy(zero_copy_only=False)
        numbers = np.where(has_own, wanted, numbers).astype(np.int32)
        numbers[has_own & ((wanted < 0) | (wanted >= facts.partitions))] = RowProblem.WRONG_PARTITION
    if facts.is_compacted:
        numbers[keyless] = RowProblem.NO_KEY
    return numbers


def by_key(
    keys: pa.Array | None, rows: int, partitions: int, first_keyless: int
) -> tuple[Int32s, npt.NDArray[np.int64]]:
    """The partition of each row by its key, and which rows have none: those go round the partitions."""
    numbers = np.full(rows, -1, np.int32) if keys is None else partition_column(keys, partitions)
    keyless = np.flatnonzero(numbers < 0)
    numbers[keyless] = (np.arange(len(keyless)) // KEYLESS_RUN + first_keyless) % partitions
    return numbers, keyless


def _note_largest(largest: npt.NDArray[np.int64], rows: Any, facts: TopicFacts | None) -> None:
    if facts is not None and facts.message_bytes_max is not None:
        largest[rows] = np.minimum(largest[rows], facts.message_bytes_max)


def _sent_sizes(orders: TaskOrders, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """What each row takes in a batch of its own, compressed if it is sent so."""
    return np.array([encoded.size_bytes for encoded in encode_rows(orders, rows, batch_bytes=1)], np.int64)


def encode_rows(orders: TaskOrders, rows: pa.RecordBatch, batch_bytes: int) -> list[EncodedBatch]:
    names = rows.schema.names
    return encode_columns(
        rows.column("value"),
        key=rows.column("key") if "key" in names else None,
        headers=rows.column("headers") if "headers" in names else None,
        timestamp_ms=time.time_ns() // 1_000_000,
        codec=Codec[orders.compression_type.upper()],
        batch_bytes=batch_bytes,
    )


def _refuse_bad_row(
    orders: TaskOrders,
    numbers: Int32s,
    sizes: npt.NDArray[np.int64],
    largest: npt.NDArray[np.int64],
    batch: pa.RecordBatch,
) -> None:
    bad = np.flatnonzero(numbers < 0)
    if not len(bad):
        return
    row = int(bad[0])
    kind = RowProblem(int(numbers[row]))
    names = batch.schema.names
    topic = batch.column("topic")[row].as_py() if "topic" in names else orders.topic
    about = f"topic {topic}, {sizes[row]} bytes"
    if "partition" in names:
        about += f", partition {batch.column('partition')[row].as_py()}"
    if kind is RowProblem.TOO_LARGE:
        about += f", allowed are {orders.max_request_size}: raise that and the broker's message.max.bytes, if need be"
    if kind is RowProblem.TOO_LARGE_FOR_TOPIC:
        about += f", allowed are {largest[row]}: raise max.message.bytes of the topic"
    raise RowError(
        f"a row cannot be written: {REASONS[kind]} ({about}). Correct the rows, or give the sink a dead_letter_topic "
        "for such rows"
    )
