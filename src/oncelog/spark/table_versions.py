"""Topics that a query reads as tables beside its streams: which part of them a micro-batch has read.

Spark keeps the plan of a table for as long as its DataFrame lives, so that a query would see it as it was at its start.
`renew_tables` makes Spark plan it again for the next batch.

A batch that was committed and not noted is run again for its state alone. It must read the same tables then, or state
and output disagree from there on; so queries with state note what they have read (see `resume`).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from oncelog.spark.micro_batch import elements, execution_of, plan_nodes
from oncelog.spark.planning import OffsetRange, bounds_text
from oncelog.spark.read_task import RangePartition
from oncelog.spark.source import OncelogDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def has_tables(spark: SparkSession, query_id: str) -> bool:
    return any(True for _ in _relations(execution_of(spark, query_id)))


def renew_tables(spark: SparkSession, query_id: str) -> None:
    """Have the next batch plan its tables again."""
    for relation in _relations(execution_of(spark, query_id)):
        table = relation.table()
        held = table.getClass().getDeclaredField("ds")
        held.setAccessible(True)
        held.get(table).setReadInfo(None)


def tables_read(spark: SparkSession, query_id: str) -> str:
    """What the batch that is running reads of all tables, as a short text."""
    nodes = plan_nodes(execution_of(spark, query_id))
    return bounds_text(task for node in nodes if _is_table_scan(node) for task in _tasks(node))


def _relations(execution: Any) -> Iterator[Any]:
    for leaf in elements(execution.lastExecution().logical().collectLeaves()):
        if (
            leaf.getClass().getSimpleName() == "DataSourceV2Relation"
            and leaf.table().name() == OncelogDataSource.name()
        ):
            yield leaf


def _is_table_scan(node: Any) -> bool:
    return node.getClass().getSimpleName() == "BatchScanExec" and str(node.table().name()) == OncelogDataSource.name()


def _tasks(scan: Any) -> Iterator[OffsetRange]:
    for planned in elements(scan.inputPartitions()):
        task = pickle.loads(bytes(planned.pickedPartition()))  # our own source made it
        if isinstance(task, RangePartition):
            yield from task.ranges
