"""The Spark job that writes one micro-batch: rows to partitions, partitions to tasks, tasks to the broker.

Every output partition is written by exactly one task, because the sequence numbers of a partition are one series. Rows
with a key, a topic or a partition of their own are therefore shuffled by their output partition (`repartitionById`:
partition id = task id). Rows without any may go anywhere: when the batch has no more tasks than the topic has
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
from oncelog.spark.routing import PARTITION_COLUMN
from oncelog.spark.rows import plain_rows
from oncelog.spark.sink_options import SinkOptions
from oncelog.spark.source_options import OptionError
from oncelog.spark.worker_client import worker_client

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RESULT_SCHEMA = "topic string, partition int, records long, size_bytes long, first_offset long"
TASKS_PER_CORE_MAX = 2
"""Output partitions beyond that share tasks: a task costs some 20 ms however few rows it has."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a job wrote."""

    records: int
    size_bytes: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class TaskOrders:
    """Everything a task needs to know; small and picklable."""

    client: ClientConfig
    identity: ProducerIdAndEpoch
    transactional_id: str | None
    transaction_version: int
    compression_type: str
    max_request_size: int
    topic: str | None
    dead_letter_topic: str | None
    partition_count: int
    first_partition: int
    """Of rows without key and partition: task 0 writes here, task 1 to the next, and so on round the topic."""
    may_run_again: bool = False
    """Only for writing without transactions, where a repeated task is allowed to double its rows."""


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
    count = _existing_partitions(options)
    orders = TaskOrders(
        client=options.client,
        identity=identity,
        transactional_id=options.transactional_id,
        transaction_version=transaction_version,
        compression_type=options.compression_type,
        max_request_size=options.max_request_size,
        topic=options.topic,
        dead_letter_topic=options.dead_letter_topic,
        partition_count=count,
        first_partition=rotation % max(count, 1),
    )
    return run_orders(frame, orders)


def run_orders(frame: DataFrame, orders: TaskOrders) -> Written:
    rows = plain_rows(frame, orders.topic)
    totals = _placed(rows, orders).mapInArrow(_writing(orders), RESULT_SCHEMA).collect()
    return Written(
        records=sum(total.records for total in totals),
        size_bytes=sum(total.size_bytes for total in totals),
        partitions=tuple(sorted({TopicPartition(total.topic, total.partition) for total in totals})),
    )


def _existing_partitions(options: SinkOptions) -> int:
    """Partitions of the sink's topic, 0 when it has none. Raises OptionError for a topic that does not exist."""
    named = [name for name in (options.topic, options.dead_letter_topic) if name is not None]
    found = worker_client(options.client).partitions_of(named) if named else {}
    for name in named:
        if not found.get(name):
            setting = "topic" if name == options.topic else "dead_letter_topic"
            raise OptionError(
                f"{setting}: topic {name} does not exist on {options.client.bootstrap_servers}. Create it first: its "
                "number of partitions decides where keys go"
            )
    return 0 if options.topic is None else len(found[options.topic])


def _placed(rows: DataFrame, orders: TaskOrders) -> DataFrame:
    """The rows so that each task has whole output partitions, with their number unless the task chooses it."""
    from pyspark.sql import functions as sf

    names = set(rows.columns)
    if not names & {"key", "partition", "topic"} and orders.dead_letter_topic is None:
        if rows.rdd.getNumPartitions() <= orders.partition_count:
            return rows
        spread = (sf.monotonically_increasing_id() % orders.partition_count).cast("int")
        return rows.repartitionById(orders.partition_count, spread)
    numbered = rows.withColumn(PARTITION_COLUMN, _partition_of(orders, names))
    place = sf.col(PARTITION_COLUMN).cast("long")
    if "topic" in names:
        place = place + sf.crc32(sf.col("topic").cast("binary"))
    if orders.dead_letter_topic is not None:
        dead = sf.crc32(sf.lit(orders.dead_letter_topic).cast("binary"))
        place = sf.when(sf.col(PARTITION_COLUMN) < 0, dead).otherwise(place)
    tasks = TASKS_PER_CORE_MAX * rows.sparkSession.sparkContext.defaultParallelism
    if "topic" not in names:
        tasks = min(tasks, orders.partition_count)
    return numbered.repartitionById(tasks, sf.pmod(place, sf.lit(tasks)).cast("int"))


def _partition_of(orders: TaskOrders, names: set[str]) -> Column:
    from pyspark.sql import functions as sf
    from pyspark.sql.pandas.functions import arrow_udf

    given = [name for name in ("key", "topic", "partition") if name in names]
    sizes = [sf.coalesce(sf.octet_length(name), sf.lit(0)) for name in ("key", "value") if name in names]
    size = sizes[0] + sizes[1] if len(sizes) == 2 else sizes[0]

    def number(*arrays: pa.Array) -> pa.Array:
        from oncelog.spark.routing import partition_numbers

        return partition_numbers(orders, dict(zip(["size", *given], arrays, strict=True)))

    # The stubs of pyspark know no function of any number of columns; the function itself does.
    make_udf: Any = arrow_udf
    return cast("Column", make_udf(number, returnType="int")(size, *(sf.col(name) for name in given)))


def _writing(orders: TaskOrders) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from oncelog.spark.write_task import write_batches

        yield from write_batches(orders, batches)

    return write
