"""Topics that a query reads as tables beside its streams: which part of them a micro-batch has read.

Spark keeps the plan of a table for as long as its DataFrame lives, so that a query would see it as it was at its start.
`renew` makes Spark plan it again for the next batch.

A batch that was committed and not noted is run again for its state alone. It must read the same tables then, or state
and output disagree from there on; so the sinks keep with a batch of a query with state what it has read, and refuse to
run it again with other tables (`check_tables_read`).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oncelog.spark.micro_batch import MicroBatch, elements, execution_of, keeps_state, plan_nodes
from oncelog.spark.planning import OffsetRange, bounds_text
from oncelog.spark.read_task import RangePartition
from oncelog.spark.source import OncelogDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class TablesOfQuery:
    """The topics that the query of a sink reads as tables."""

    spark: SparkSession
    _is_any: bool | None = None
    """None until the first batch."""

    def read_by(self, batch: MicroBatch) -> str | None:
        """What the batch that is running reads of all tables, as a short text. None where state does not depend on it.

        Called before the batch is computed.
        """
        if not self._has_any(batch) or not keeps_state(self.spark, batch.query_id):
            return None
        nodes = plan_nodes(execution_of(self.spark, batch.query_id))
        return bounds_text(task for node in nodes if _is_table_scan(node) for task in _tasks(node))

    def renew(self, batch: MicroBatch) -> None:
        """Have the next batch plan its tables again."""
        if not self._has_any(batch):
            return
        for relation in _relations(execution_of(self.spark, batch.query_id)):
            table = relation.table()
            held = table.getClass().getDeclaredField("ds")
            held.setAccessible(True)
            held.get(table).setReadInfo(None)

    def _has_any(self, batch: MicroBatch) -> bool:
        if self._is_any is None:
            self._is_any = any(True for _ in _relations(execution_of(self.spark, batch.query_id)))
        return self._is_any


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
