"""Which micro-batches the driver may write itself, and how it finds out in time that one of them is not small.

Theory of operation. The number of input records of a batch is known beforehand, the number and the size of the rows
they become is not. So rows are collected under limits that Spark itself keeps, on the executors and without Python: a
task hands over one row more than is allowed at most, and of a column one byte more. What comes is COLLECTED_BYTES at
most, and when it is more than allowed the batch is NotSmall. Nothing is written by then, so tasks write it in the same
transaction; and as its rows were computed for nothing, the next batches of the query are not taken for small. Where so
many tasks share COLLECTED_BYTES that ordinary rows would be above the limits, the batch is not taken for small either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.compute as pc

from oncelog.spark.micro_batch import MicroBatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

BATCH_OFFSETS = 5_000
"""Up to so many input records the driver writes faster than a second stage would."""
COLLECTED_BYTES = 128 * 1024 * 1024
"""About what the driver gets to hold at most, whatever becomes of those records."""
ROWS_MIN = 1024
"""This many rows always count as few, however few the input records were: state has rows of its own."""
TASKS_OF_ALL = 8
"""Up to this many tasks may each hand over all rows of a batch."""
ROWS_PER_RECORD = 2
"""Each of more tasks may hand over so many times its share, the largest partition included."""
COLUMN_BYTES_MIN = 256
"""Below that most batches would be computed twice."""
LARGE_RUN = 50
"""After a batch that was not small, this many are not tried as small ones."""
TOO_LONG = "oncelog_too_long"
TOO_MANY = "oncelog_too_many"
"""True in the one row that a task hands over beyond what is allowed."""
_TASK_ROW_BITS = (1 << 33) - 1
"""The bits of Spark's monotonically increasing id that number the row within its task."""


class NotSmall(Exception):
    """There is more of a batch than the driver takes. Nothing is written yet."""


class Limits(NamedTuple):
    rows: int
    """Of each task."""
    column_bytes: int


def limits(records: Sequence[int], tasks: int, columns: int) -> Limits | None:
    """For a batch that reads so many records of each partition; None when too many tasks share what there is.

    Changes in steps of two, because Spark compiles a query anew for every other number in it.
    """
    rows = _rows_of_a_task(records, max(tasks, 1))
    rows = 1 << (rows - 1).bit_length()
    share = COLLECTED_BYTES // (rows * max(tasks, 1) * columns)
    return None if share < COLUMN_BYTES_MIN else Limits(rows, 1 << share.bit_length() >> 1)


def _rows_of_a_task(records: Sequence[int], tasks: int) -> int:
    """Few tasks may each hand over all rows. Many share them about evenly: as the source shares out partitions, or by
    the keys of a shuffle."""
    total, largest = sum(records), max(records, default=0)
    if tasks <= TASKS_OF_ALL:
        return max(total, ROWS_MIN)
    return max(ROWS_PER_RECORD * (total // tasks + largest), -(-ROWS_MIN // tasks))


class SmallBatches:
    """The small micro-batches of one query."""

    def __init__(self) -> None:
        self._large_until = 0
        self._selections: dict[Limits, tuple[Column, list[Column]]] = {}

    def may_be_small(self, batch: MicroBatch) -> bool:
        bound = batch.size_bound
        return bound is not None and bound <= BATCH_OFFSETS and batch.batch_id >= self._large_until

    def limits(self, batch: MicroBatch, tasks: int, columns: int) -> Limits | None:
        start = batch.start or {}
        return limits([end - start.get(partition, 0) for partition, end in batch.end.items()], tasks, columns)

    def was_large(self, batch: MicroBatch) -> None:
        self._large_until = batch.batch_id + 1 + LARGE_RUN

    def collect(self, frame: DataFrame, columns: Mapping[str, Column], allowed: Limits) -> pa.Table:
        """The rows with their plain columns. Raises NotSmall when there is more of them than allowed."""
        if allowed not in self._selections:
            # Kept, because making them costs as much as a small batch has to spare.
            self._selections[allowed] = _few(allowed), _short(columns, allowed)
        few, short = self._selections[allowed]
        return checked(frame.where(few).select(*short).toArrow(), allowed)


def checked(table: pa.Table, allowed: Limits) -> pa.Table:
    """Raises NotSmall for a table that was cut."""
    for name in table.schema.names:
        column = table.column(name)
        if name in (TOO_LONG, TOO_MANY):
            cut = pc.any(column).as_py()
        else:
            sized = name in ("key", "value", "topic")
            cut = sized and (pc.max(pc.binary_length(column)).as_py() or 0) > allowed.column_bytes
        if cut:
            raise NotSmall
    return table.drop_columns([name for name in (TOO_LONG, TOO_MANY) if name in table.schema.names])


def _few(allowed: Limits) -> Column:
    return _row_of_task() <= allowed.rows


def _row_of_task() -> Column:
    from pyspark.sql import functions as sf

    return sf.monotonically_increasing_id().bitwiseAND(sf.lit(_TASK_ROW_BITS))


def _short(columns: Mapping[str, Column], allowed: Limits) -> list[Column]:
    from pyspark.sql import functions as sf

    short = [(_row_of_task() == allowed.rows).alias(TOO_MANY)]
    for name, column in columns.items():
        if name == "headers":
            fits = _headers_bytes() <= allowed.column_bytes
            short += [sf.when(fits, column).alias(name), (~fits).alias(TOO_LONG)]
        elif name == "partition":
            short.append(column)
        else:
            short.append(sf.substring(column, 1, allowed.column_bytes + 1).alias(name))
    return short


def _headers_bytes() -> Column:
    from pyspark.sql import functions as sf

    def length(column: Column) -> Column:
        return sf.coalesce(sf.octet_length(column), sf.lit(0))

    total = sf.aggregate(
        "headers", sf.lit(0), lambda sum_, header: sum_ + length(header["key"]) + length(header["value"])
    )
    return sf.coalesce(total, sf.lit(0))
