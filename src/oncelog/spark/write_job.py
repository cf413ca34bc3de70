"""The Spark job that writes one micro-batch: rows to record batches, record batches to tasks, tasks to the broker.

Every output partition is written by exactly one task, because the sequence numbers of a partition are one series. There
are three modes that ensure this, and the cheapest that fits is used:

    DRIVER     a small batch (see `small_batch`) is computed by its tasks and written by the driver: no second stage
    DIRECT     rows that may go anywhere (no key, topic or partition), in no more tasks than the topic has partitions:
               each task takes a partition for itself: no shuffle
    SHUFFLED   in all other cases a first stage encodes the rows into record batches, by output partition, and a second
               one writes them. What is shuffled (`repartitionById`: partition id = task id) is some hundred kilobytes
               at a time, not rows

No row is touched in Python: columns come as Arrow batches and leave as encoded record batches, and a task holds a few
of them at a time however large its share is.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from oncelog.client import ClientConfig, SharedTransaction, TopicFacts, TopicPartition, TransactionClient
from oncelog.spark.micro_batch import MicroBatch, task_count
from oncelog.spark.rows import plain_columns
from oncelog.spark.sink_options import SinkOptions
from oncelog.spark.small_batch import NotSmall, SmallBatches
from oncelog.spark.source_options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

logger = logging.getLogger(__name__)

RESULT_SCHEMA = "topic string, partition int, records long, size_bytes long, first_offset long, error string"
ENCODED_SCHEMA = (
    "place int, topic string, partition int, records int, base_timestamp long, max_timestamp long, codec int, "
    "body binary"
)
TASKS_PER_CORE_MAX = 2
"""Output partitions beyond that share tasks: a task costs some 20 ms however few rows it has."""

LETTER_BYTES_MIN = 2048
"""What a dead letter takes at most that has left out all it can."""

Stage = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


class WriteMode(Enum):
    DRIVER = "driver"
    DIRECT = "direct"
    SHUFFLED = "shuffled"


@dataclass(frozen=True, slots=True)
class Written:
    """What a job wrote."""

    records: int
    size_bytes: int
    partitions: tuple[TopicPartition, ...]
    records_by_topic: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskOrders:
    """Everything a task needs to know; small and picklable."""

    client: ClientConfig
    transaction: SharedTransaction
    """With what is known of the sink's own topics, so that no task has to ask."""
    compression_type: str
    max_request_size: int
    topic: str | None
    dead_letter_topic: str | None
    first_partition: int
    """For rows without key and partition: task 0 writes here, task 1 to the next, and so on round the topic."""
    mode: WriteMode = WriteMode.SHUFFLED
    writing_tasks: int = 1
    """How many tasks the second stage has, when there is one."""
    may_run_again: bool = False
    """Only for writing without transactions, where a repeated task is allowed to double its rows."""

    @property
    def partition_count(self) -> int:
        """The partitions of the sink's topic; 0 when it has none."""
        return 0 if self.topic is None else self.transaction.topics[self.topic].partitions


class TaskFailed(RuntimeError):
    """A writing task could not write; the text says why."""


class TaskRanAgain(RuntimeError):
    """Spark runs a task again whose first run may have written already. The sink takes a new epoch instead."""


def run_write_job(
    frame: DataFrame,
    options: SinkOptions,
    driver: TransactionClient,
    *,
    columns: Mapping[str, Column] | None = None,
    batch: MicroBatch | None = None,
    small: SmallBatches | None = None,
) -> Written:
    """Write all rows in the transaction of a driver.

    Returns when everything is acknowledged; raises TaskFailed when a task could not write.

    `columns` are those of `plain_columns`, when the caller has them. What is known of a micro-batch decides the mode;
    rows of a plain frame are shuffled. `small` is what is known of the small batches of the query: without it there are
    none.
    """
    transaction = driver.share([name for name in (options.topic, options.dead_letter_topic) if name is not None])
    _check_topics(options, transaction.topics)
    count = 0 if options.topic is None else transaction.topics[options.topic].partitions
    orders = TaskOrders(
        client=options.client,
        transaction=transaction,
        compression_type=options.compression_type,
        max_request_size=options.max_request_size,
        topic=options.topic,
        dead_letter_topic=options.dead_letter_topic,
        first_partition=0 if batch is None else batch.batch_id % max(count, 1),
    )
    given = plain_columns(frame, options.topic) if columns is None else columns
    if batch is None:
        return run_orders(frame, given, orders)
    if small is not None and (rows := _collected(frame, given, batch, small)) is not None:
        return write_here(rows, replace(orders, mode=WriteMode.DRIVER))
    return run_orders(frame, given, replace(orders, mode=_write_mode(frame, given, orders)))


def _collected(
    frame: DataFrame, columns: Mapping[str, Column], batch: MicroBatch, small: SmallBatches
) -> pa.Table | None:
    """The rows, if the driver may write them."""
    if not small.may_be_small(batch):
        return None
    allowed = small.limits(batch, task_count(frame), len(columns))
    if allowed is None:
        return None
    try:
        return small.collect(frame, columns, allowed)
    except NotSmall:
        logger.info("batch %d is too large for the driver: tasks write it", batch.batch_id)
        small.was_large(batch)
        return None


def run_orders(frame: DataFrame, columns: Mapping[str, Column], orders: TaskOrders) -> Written:
    """Have tasks write."""
    rows = frame.select(*columns.values())
    if orders.mode is WriteMode.SHUFFLED:
        tasks = TASKS_PER_CORE_MAX * frame.sparkSession.sparkContext.defaultParallelism
        if "topic" not in columns:
            tasks = min(tasks, orders.partition_count)
        orders = replace(orders, writing_tasks=tasks)
        rows = rows.mapInArrow(_encoding(orders), ENCODED_SCHEMA).repartitionById(tasks, "place")
    return _written([total.asDict() for total in rows.mapInArrow(_writing(orders), RESULT_SCHEMA).collect()])


def write_here(rows: pa.Table, orders: TaskOrders) -> Written:
    """Write the rows in this process, which is the driver."""
    from oncelog.spark.write_task import write_batches

    return _written(write_batches(orders, 0, iter(rows.to_batches())).to_pylist())


def _written(totals: list[dict[str, Any]]) -> Written:
    """Raises TaskFailed for the first task that could not write."""
    for total in totals:
        if total["error"] is not None:
            raise TaskFailed(total["error"])
    by_topic: Counter[str] = Counter()
    for total in totals:
        by_topic[total["topic"]] += total["records"]
    return Written(
        records_by_topic=dict(by_topic),
        records=sum(total["records"] for total in totals),
        size_bytes=sum(total["size_bytes"] for total in totals),
        partitions=tuple(sorted({TopicPartition(total["topic"], total["partition"]) for total in totals})),
    )


def _check_topics(options: SinkOptions, found: Mapping[str, TopicFacts]) -> None:
    """Raise OptionError for one of the sink's own topics that cannot be written to."""
    for setting, name in (("topic", options.topic), ("dead_letter_topic", options.dead_letter_topic)):
        if name is None:
            continue
        if name not in found or not found[name].partitions:
            raise OptionError(
                f"{setting}: topic {name} does not exist on {options.client.bootstrap_servers}. Create it first: its "
                "number of partitions decides where keys go"
            )
        if found[name].is_internal:
            raise OptionError(f"{setting}: topic {name} is the cluster's own, and only its brokers write to it")
    if options.dead_letter_topic is not None:
        _check_dead_letters(options.dead_letter_topic, found[options.dead_letter_topic])


def _check_dead_letters(topic: str, facts: TopicFacts) -> None:
    if facts.is_compacted:
        raise OptionError(
            f"dead_letter_topic: topic {topic} is compacted, which would refuse rows without a "
            "key and lose all but the last of each key. Choose another, or set its cleanup.policy to delete"
        )
    if facts.record_bytes_max(LETTER_BYTES_MIN) < LETTER_BYTES_MIN:
        raise OptionError(
            f"dead_letter_topic: topic {topic} takes no records above {facts.message_bytes_max} bytes "
            f"(max.message.bytes), and what is said of a bad row may need {LETTER_BYTES_MIN}"
        )


def _write_mode(frame: DataFrame, columns: Mapping[str, Column], orders: TaskOrders) -> WriteMode:
    routed = columns.keys() & {"key", "partition", "topic"} or orders.dead_letter_topic is not None
    return WriteMode.SHUFFLED if routed or task_count(frame) > orders.partition_count else WriteMode.DIRECT


def _encoding(orders: TaskOrders) -> Stage:
    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from oncelog.spark.write_task import encode_stage

        yield from encode_stage(orders, batches)

    return encode


def _writing(orders: TaskOrders) -> Stage:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from oncelog.spark.write_task import write_stage

        yield from write_stage(orders, batches)

    return write
