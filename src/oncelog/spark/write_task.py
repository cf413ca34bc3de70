"""What the tasks of a write job do: encode rows into record batches by output partition, and write record batches."""

from __future__ import annotations

import traceback
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from oncelog.client import (
    BatchProducer,
    EncodedBatch,
    KafkaError,
    ProduceSummary,
    TopicFacts,
    TopicPartition,
    worker_client,
)
from oncelog.client.columns import BATCH_BYTES, group_rows
from oncelog.protocol.batch import HEADER_BYTES
from oncelog.spark.dead_letters import dead_letters
from oncelog.spark.routing import RowError, by_key, encode_rows, facts_of, partition_numbers
from oncelog.spark.write_job import ENCODED_SCHEMA, RESULT_SCHEMA, TaskOrders, TaskRanAgain, WriteMode

if TYPE_CHECKING:
    import numpy.typing as npt

_ARROW_TYPES = {"string": pa.string(), "int": pa.int32(), "long": pa.int64(), "binary": pa.binary()}
RESULT_FIELDS, ENCODED_FIELDS = (
    pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in (column.split() for column in columns.split(", "))])
    for columns in (RESULT_SCHEMA, ENCODED_SCHEMA)
)

Addressed = tuple[TopicPartition, EncodedBatch]

GATHERED_BYTES = 64 * 1024
"""How much of rows is gathered for each output partition before it is encoded."""
GATHERED_BYTES_MAX = 32 * 1024 * 1024
"""For all of them: what a task may hold of rows."""
SHUFFLED_BYTES = 8 * 1024 * 1024
"""How much of record batches goes into one Arrow batch to the shuffle."""


def encode_stage(orders: TaskOrders, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first stage of a shuffled job: rows in, one row per record batch out, with the task it goes to."""
    addressed: list[Addressed] = []
    size_bytes = 0
    for one in _encode(orders, _task_number(), batches):
        addressed.append(one)
        size_bytes += one[1].size_bytes
        if size_bytes >= SHUFFLED_BYTES:
            yield _packed(orders, addressed)
            addressed, size_bytes = [], 0
    if addressed:
        yield _packed(orders, addressed)


def _packed(orders: TaskOrders, addressed: list[Addressed]) -> pa.RecordBatch:
    columns: list[list[Any]] = [
        [_place(orders, target) for target, _ in addressed],
        [target.topic for target, _ in addressed],
        [target.partition for target, _ in addressed],
        *([encoded[i] for _, encoded in addressed] for i in range(5)),
    ]
    return _record_batch(columns, ENCODED_FIELDS)


def _place(orders: TaskOrders, target: TopicPartition) -> int:
    """The task that writes a partition: any will do, as long as it is always the same one."""
    first = 0 if target.topic == orders.topic else zlib.crc32(target.topic.encode())
    return (first + target.partition) % orders.writing_tasks


def write_stage(orders: TaskOrders, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a writing task does. Raises TaskRanAgain when an earlier run of it may have written already.

    What goes wrong here is a result: Spark would run a task that raises again, and report the refusal of that second
    run in place of the reason.
    """
    task = _task_number(allowed_again=orders.may_run_again)
    try:
        result = write_batches(orders, task, batches)
    except Exception as error:  # noqa: BLE001  # the driver raises it
        result = _failure(error)
    yield result


def _failure(error: Exception) -> pa.RecordBatch:
    expected = isinstance(error, KafkaError | RowError)
    lines = traceback.format_exception_only(error) if expected else traceback.format_exception(error)
    text = "".join(lines).strip()
    return _record_batch([*([None] for _ in RESULT_FIELDS.names[1:]), [text]], RESULT_FIELDS)


def write_batches(orders: TaskOrders, task: int, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    """Write everything and wait for the acknowledgements. Returns one row per output partition."""
    with BatchProducer(worker_client(orders.client), orders.transaction) as producer:
        arriving = _unpack(batches) if orders.mode is WriteMode.SHUFFLED else _encode(orders, task, batches)
        for target, encoded in arriving:
            producer.write(target, encoded)
        return _result(producer.flush())


def _unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[Addressed]:
    for batch in batches:
        # Bodies are copied one at a time, and not all of the batch at once: they are nearly all of its size.
        bodies = batch.column("body")
        for i, row in enumerate(batch.select([name for name in batch.schema.names if name != "body"]).to_pylist()):
            counts = row["records"], row["base_timestamp"], row["max_timestamp"], row["codec"]
            yield TopicPartition(row["topic"], row["partition"]), EncodedBatch(*counts, bodies[i].as_py())


def _task_number(*, allowed_again: bool = True) -> int:
    """Raises TaskRanAgain when an earlier run of this task may have written already."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return 0
    if context.attemptNumber() > 0 and not allowed_again:
        raise TaskRanAgain(
            f"task {context.partitionId()} runs a second time (attempt {context.attemptNumber()}): its first run, of "
            "which Spark's log tells how it ended, may have written already, so the whole batch is run again in a new "
            "transaction"
        )
    return int(context.partitionId())


def _result(totals: list[ProduceSummary]) -> pa.RecordBatch:
    columns: list[list[Any]] = [
        [total.partition.topic for total in totals],
        [total.partition.partition for total in totals],
        [total.records for total in totals],
        [total.size_bytes for total in totals],
        [total.first_offset for total in totals],
        [None for _ in totals],
    ]
    return _record_batch(columns, RESULT_FIELDS)


def _record_batch(columns: list[list[Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _encode(orders: TaskOrders, task: int, batches: Iterator[pa.RecordBatch]) -> Iterator[Addressed]:
    """As record batches. Rows for many partitions are gathered first, so that those are not of a few rows each."""
    held: list[pa.RecordBatch] = []
    held_bytes, targets = 0, orders.partition_count
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= min(GATHERED_BYTES_MAX, targets * GATHERED_BYTES):
            encoded = _encoded(orders, task, held)
            targets = len({target for target, _ in encoded})
            held, held_bytes = [], 0
            yield from encoded
    if held:
        yield from _encoded(orders, task, held)


def _encoded(orders: TaskOrders, task: int, batches: list[pa.RecordBatch]) -> list[Addressed]:
    addressed: list[Addressed] = []
    for gathered in pa.Table.from_batches(batches).combine_chunks().to_batches():
        for target, rows in by_target(orders, task, gathered):
            # A topic may have been deleted since its rows were judged: the broker will say so.
            facts = facts_of(orders, [target.topic]).get(target.topic, TopicFacts(0))
            size_max = facts.record_bytes_max(orders.max_request_size)
            wanted_bytes = max(1, min(BATCH_BYTES, size_max - HEADER_BYTES))
            addressed += [(target, encoded) for encoded in encode_rows(orders, rows, wanted_bytes)]
    return addressed


def by_target(orders: TaskOrders, task: int, batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """The rows of a batch by output partition, in their order."""
    first_keyless = orders.first_partition + task
    numbers = partition_numbers(orders, batch, first_keyless)
    if orders.mode is WriteMode.DIRECT:
        yield TopicPartition(orders.topic or "", first_keyless % orders.partition_count), batch
        return
    if len(numbers) and int(numbers.min()) < 0:
        bad = np.flatnonzero(numbers < 0)
        letters = dead_letters(batch.take(pa.array(bad)), numbers[bad], orders)
        yield from _by_partition(orders.dead_letter_topic or "", letters, _of_letters(orders, letters, first_keyless))
        good = np.flatnonzero(numbers >= 0)
        batch, numbers = batch.take(pa.array(good)), numbers[good]
    if "topic" not in batch.schema.names:
        yield from _by_partition(orders.topic or "", batch, numbers)
        return
    topics = batch.column("topic").dictionary_encode()
    codes = numbers.astype(np.int64) + (topics.indices.to_numpy(zero_copy_only=False).astype(np.int64) << 32)
    for code, rows in group_rows(codes):
        topic = topics.dictionary[code >> 32].as_py()
        yield TopicPartition(topic, code & 0xFFFFFFFF), _taken(batch, rows)


def _of_letters(orders: TaskOrders, letters: pa.RecordBatch, first_keyless: int) -> npt.NDArray[np.int32]:
    """The partitions of dead letters: those of their keys, like those of any record."""
    topic = orders.dead_letter_topic or ""
    numbers, _ = by_key(
        letters.column("key"), letters.num_rows, facts_of(orders, [topic])[topic].partitions, first_keyless
    )
    return numbers


def _by_partition(
    topic: str, batch: pa.RecordBatch, numbers: npt.NDArray[np.int32]
) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    for number, rows in group_rows(numbers):
        yield TopicPartition(topic, number), _taken(batch, rows)


def _taken(batch: pa.RecordBatch, rows: pa.Array) -> pa.RecordBatch:
    """Nothing is copied where all rows are wanted."""
    return batch if len(rows) == batch.num_rows else batch.take(rows)
