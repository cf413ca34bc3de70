"""Writes one task's rows: Arrow batches to encoded record batches, by output partition."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.client.columns import encode_columns
from oncelog.client.encoded_batch import EncodedBatch
from oncelog.core.ids import TopicPartition
from oncelog.protocol.compression import Codec
from oncelog.spark.dead_letters import dead_letters
from oncelog.spark.routing import PARTITION_COLUMN, REASONS, Poison, RowError
from oncelog.spark.task_writer import PartitionTotal, TaskWriter
from oncelog.spark.worker_client import worker_client
from oncelog.spark.write_job import TaskOrders, TaskRanAgain

if TYPE_CHECKING:
    import numpy.typing as npt

RESULT_FIELDS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("size_bytes", pa.int64()),
        ("first_offset", pa.int64()),
    ]
)


def write_batches(orders: TaskOrders, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write everything, wait for the acknowledgements, then yield one row per output partition."""
    task = _task_number(orders)
    codec = Codec[orders.compression_type.upper()]
    with TaskWriter(
        worker_client(orders.client),
        identity=orders.identity,
        transactional_id=orders.transactional_id,
        transaction_version=orders.transaction_version,
    ) as writer:
        for batch in batches:
            for target, rows in by_target(orders, task, batch):
                writer.write(target, _encoded(rows, codec))
        totals = writer.finish()
    yield _result(totals)


def _task_number(orders: TaskOrders) -> int:
    """Raises TaskRanAgain when an earlier run of this task may have written already."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return 0
    if context.attemptNumber() > 0 and not orders.may_run_again:
        raise TaskRanAgain(
            f"task {context.partitionId()} runs a second time (attempt {context.attemptNumber()}): its first run may "
            "have written already, so the whole batch is run again in a new transaction"
        )
    return int(context.partitionId())


def _result(totals: list[PartitionTotal]) -> pa.RecordBatch:
    columns = [
        [total.partition.topic for total in totals],
        [total.partition.partition for total in totals],
        [total.records for total in totals],
        [total.size_bytes for total in totals],
        [total.first_offset for total in totals],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, RESULT_FIELDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RESULT_FIELDS)


def by_target(orders: TaskOrders, task: int, batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """The rows of a batch by output partition, in their order."""
    names = batch.schema.names
    if PARTITION_COLUMN not in names:
        _refuse_large(orders, batch)
        own = (orders.first_partition + task) % orders.partition_count
        yield TopicPartition(orders.topic or "", own), batch
        return
    numbers = batch.column(PARTITION_COLUMN).to_numpy(zero_copy_only=False)
    if len(numbers) and int(numbers.min()) < 0:
        poisoned = pa.array(np.flatnonzero(numbers < 0))
        yield TopicPartition(orders.dead_letter_topic or "", 0), dead_letters(batch.take(poisoned), orders)
        batch = batch.take(pa.array(np.flatnonzero(numbers >= 0)))
        numbers = batch.column(PARTITION_COLUMN).to_numpy(zero_copy_only=False)
    topics = batch.column("topic").dictionary_encode() if "topic" in names else None
    codes = numbers.astype(np.int64)
    if topics is not None:
        codes += topics.indices.to_numpy(zero_copy_only=False).astype(np.int64) << 32
    for code, rows in _groups(codes):
        topic = orders.topic if topics is None else topics.dictionary[code >> 32].as_py()
        part = batch if rows is None else batch.take(pa.array(rows))
        yield TopicPartition(str(topic), code & 0xFFFFFFFF), part


def _refuse_large(orders: TaskOrders, batch: pa.RecordBatch) -> None:
    largest = pc.max(pc.binary_length(batch.column("value"))).as_py() or 0
    if largest > orders.max_request_size:
        raise RowError(
            f"a row cannot be written: {REASONS[Poison.TOO_LARGE]} ({largest} bytes, allowed are "
            f"{orders.max_request_size}). Make it smaller, give the sink a dead_letter_topic for such rows, or raise "
            "max_request_size and the broker's message.max.bytes"
        )


def _groups(codes: npt.NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
    """Rows by code; None for all rows when they have one code alike."""
    if len(codes) == 0:
        return
    if (codes == codes[0]).all():
        yield int(codes[0]), None
        return
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order])) + 1
    for rows in np.split(order, bounds):
        yield int(codes[rows[0]]), rows


def _encoded(rows: pa.RecordBatch, codec: Codec) -> list[EncodedBatch]:
    names = rows.schema.names
    return encode_columns(
        rows.column("value"),
        key=rows.column("key") if "key" in names else None,
        headers=rows.column("headers") if "headers" in names else None,
        timestamp_ms=time.time_ns() // 1_000_000,
        codec=codec,
    )
