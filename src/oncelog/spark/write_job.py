"""The Spark job that writes one micro-batch: rows to partitions, partitions to tasks, tasks to the broker.

Every output partition is written by exactly one task, because the sequence numbers of a partition are one series.
Rows with a key or a partition of their own are therefore shuffled by their output partition (`repartitionById`:
partition id = task id). Rows without either may go anywhere: when the batch has no more tasks than the topic has
partitions, each task takes a partition for itself and nothing is shuffled.

No row is touched in Python: columns come as Arrow batches and leave as encoded record batches, and a task holds a few
of them at a time however large its share is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from oncelog.client.config import ClientConfig
from oncelog.core.ids import ProducerIdAndEpoch, TopicPartition
from oncelog.spark.rows import plain_rows
from oncelog.spark.sink_options import SinkOptions
from oncelog.spark.worker_client import worker_client

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PARTITION_COLUMN = "__partition"
RESULT_SCHEMA = "topic string, partition int, records long, size_bytes long, first_offset long"


@dataclass(frozen=True, slots=True)
class Written:
    """What a job wrote, by partition."""

    records: int
    size_bytes: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class TaskOrders:
    """Everything a task needs to know; small and picklable."""

    client: ClientConfig
    identity: ProducerIdAndEpoch
    transactional_id: str
    transaction_version: int
    compression_type: str
    topic: str | None
    partition_count: int
    first_partition: int
    """Of rows without key and partition: task 0 writes here, task 1 to the next, and so on round the topic."""


class TaskRanAgain(RuntimeError):
    """Spark runs a task again whose first run may have written already. The sink takes a new epoch instead."""


def run_write_job(
    frame: DataFrame,
    options: SinkOptions,
    *,
    identity: ProducerIdAndEpoch,
    transaction_version: int,
    rotation: int,
) -> Written:
    """Write all rows. Returns when everything is acknowledged; raises what the first failing task raised."""
    rows = plain_rows(frame, options.topic)
    partition_count = 0 if options.topic is None else worker_client(options.client).partition_count(options.topic)
    orders = TaskOrders(
        client=options.client,
        identity=identity,
        transactional_id=options.transactional_id,
        transaction_version=transaction_version,
        compression_type=options.compression_type,
        topic=options.topic,
        partition_count=partition_count,
        first_partition=rotation % max(partition_count, 1),
    )
    totals = _placed(rows, orders).mapInArrow(_writing(orders), RESULT_SCHEMA).collect()
    return Written(
        records=sum(total.records for total in totals),
        size_bytes=sum(total.size_bytes for total in totals),
        partitions=tuple(sorted({TopicPartition(total.topic, total.partition) for total in totals})),
    )


def _placed(rows: DataFrame, orders: TaskOrders) -> DataFrame:
    """The rows so that each task has whole output partitions, with their number unless the task chooses it."""
    from pyspark.sql import functions as sf

    names = set(rows.columns)
    if not names & {"key", "partition", "topic"}:
        if rows.rdd.getNumPartitions() <= orders.partition_count:
            return rows
        spread = (sf.monotonically_increasing_id() % orders.partition_count).cast("int")
        return rows.repartitionById(orders.partition_count, spread)
    numbered = rows.withColumn(PARTITION_COLUMN, _partition_of(orders, names)).drop("partition")
    if "topic" not in names:
        return numbered.repartitionById(orders.partition_count, sf.col(PARTITION_COLUMN))
    tasks = max(orders.partition_count, rows.sparkSession.sparkContext.defaultParallelism)
    where = sf.pmod(sf.crc32(sf.col("topic").cast("binary")) + sf.col(PARTITION_COLUMN), sf.lit(tasks)).cast("int")
    return numbered.repartitionById(tasks, where)


def _partition_of(orders: TaskOrders, names: set[str]) -> Column:
    from pyspark.sql import functions as sf
    from pyspark.sql.pandas.functions import arrow_udf

    columns = [sf.col(name) for name in ("key", "topic", "partition") if name in names]
    given = [name for name in ("key", "topic", "partition") if name in names]

    def number(*arrays: pa.Array) -> pa.Array:
        from oncelog.spark.routing import partition_numbers

        return partition_numbers(orders, dict(zip(given, arrays, strict=True)))

    # The stubs of pyspark know no function of any number of columns; the function itself does.
    make_udf: Any = arrow_udf
    return cast("Column", make_udf(number, returnType="int")(*columns))


def _writing(orders: TaskOrders) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from oncelog.spark.write_task import write_batches

        yield from write_batches(orders, batches)

    return write
