"""Reads ranges on an executor: each answer of the broker becomes an Arrow batch, or some if it was compressed well.

A range was there when its batch was planned. What is deleted before it is read fails the task, or is left out where
data may be lost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from oncelog.client import FetchedChunk, IsolationLevel, KafkaError, RangeReader, TimedOut, WorkerClient, worker_client
from oncelog.client.columns import arrow_batches
from oncelog.core.errors import ErrorCode
from oncelog.spark.offsets import EARLIEST, list_offsets
from oncelog.spark.planning import OffsetRange
from oncelog.spark.source_options import SourceOptions
from oncelog.spark.topic_plan import data_lost

logger = logging.getLogger(__name__)

ARROW_FIELDS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
]
HEADERS_FIELD = pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
"""Exactly what Spark derives from the source's schema: it compares types, order and nullability before it reads."""


class RangePartition(InputPartition):
    """One task: a range of one partition, or small ones of several."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        self.ranges = ranges

    def __repr__(self) -> str:
        return ", ".join(f"{one.partition}[{one.start}, {one.end})" for one in self.ranges)


def read_partition(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Its ranges one after the other. Spark asks for one empty task when there is nothing to read."""
    for wanted in partition.ranges if isinstance(partition, RangePartition) else ():
        yield from read_range(options, wanted)


def read_range(options: SourceOptions, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Every visible record of the range, once, in order."""
    schema = pa.schema([*ARROW_FIELDS, HEADERS_FIELD] if options.include_headers else ARROW_FIELDS)
    for chunk in _chunks(options, wanted):
        for batch in arrow_batches(chunk, headers=options.include_headers):
            if batch.num_rows:
                columns = [_column(batch, field) for field in schema]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    column = batch.column(field.name)
    if field.name == HEADERS_FIELD.name:
        # As in Spark's own source, records without headers have null in place of an empty list.
        column = pc.if_else(pc.greater(pc.list_value_length(column), 0), column, pa.scalar(None, column.type))
    return column.cast(field.type)


def _chunks(options: SourceOptions, wanted: OffsetRange) -> Iterator[FetchedChunk]:
    client = worker_client(options.client)
    isolation = IsolationLevel.READ_COMMITTED if options.read_committed else IsolationLevel.READ_UNCOMMITTED
    fetch_bytes = min(options.fetch_bytes_max, options.partition_fetch_bytes_max)
    reader = RangeReader(
        client, isolation=isolation, fetch_bytes=fetch_bytes, skip_corrupt_batches=options.skip_corrupt_batches
    )
    left = wanted
    while left.size > 0:
        try:
            for chunk in reader.read(*left.partition, left.start, left.end):
                left = replace(left, start=min(chunk.next_offset, left.end))
                yield chunk
            return
        except KafkaError as error:
            still_there = _still_there(client, left, error)
            if options.fail_on_data_loss:
                raise data_lost(_loss(left, still_there)) from error
            logger.warning("%s; the batch goes on without them, as failOnDataLoss is false", _loss(left, still_there))
            left = still_there


def _still_there(client: WorkerClient, left: OffsetRange, error: KafkaError) -> OffsetRange:
    """What can still be read of a range. Raises the error when it does not come from records that are gone."""
    if isinstance(error, TimedOut) or error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        if left.partition in client.partitions_of([left.partition.topic]).get(left.partition.topic, ()):
            raise error
        return replace(left, start=left.end)
    if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
        raise error
    earliest = list_offsets(client, {left.partition: EARLIEST}, IsolationLevel.READ_UNCOMMITTED)[left.partition]
    # One that begins no later than the range has lost its end: it was created again, or its log was cut.
    return replace(left, start=min(earliest, left.end) if earliest > left.start else left.end)


def _loss(left: OffsetRange, still_there: OffsetRange) -> str:
    return f"{left.partition}: offsets {left.start} to {still_there.start} went while the batch was running"
