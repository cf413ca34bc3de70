"""What Spark knows about the micro-batch it is running: the query, its trigger, and the offsets of its sources.

A `foreachBatch` function is told only the batch id. The rest is asked of the running query inside the JVM, which has
read or written it in its own checkpoint, on whatever Hadoop file system that lies. The end offsets of batch N are in
the offset log before batch N runs, and a restarted query runs N again with exactly those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oncelog.core.invariant import invariant
from oncelog.spark.offsets import Offsets, merge, parse_source_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY_ID_PROPERTY = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One run of `foreachBatch`. `start` is None when a source's first offsets cannot be seen."""

    query_id: str
    batch_id: int
    checkpoint: str
    trigger_interval_ms: int | None
    start: Offsets | None
    end: Offsets
    only_kafka: bool = False
    """Whether all sources of the query have Kafka's offsets."""

    @property
    def has_kafka_source(self) -> bool:
        return bool(self.end)

    @property
    def size_bound(self) -> int | None:
        """How many input records the batch has at most, None when that cannot be known."""
        if self.start is None or not self.only_kafka:
            return None
        return sum(offset - self.start.get(partition, 0) for partition, offset in self.end.items())


def running_batch(spark: SparkSession, frame: DataFrame, batch_id: int) -> MicroBatch:
    """Must be called inside the foreachBatch function; `spark` is the session the query was started on."""
    query_id = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)
    invariant(query_id is not None, "foreachBatch runs with the id of its query set")
    execution = _execution(spark, str(query_id))
    ends = _end_offsets(execution, batch_id)
    return MicroBatch(
        query_id=str(query_id),
        batch_id=batch_id,
        checkpoint=str(execution.resolvedCheckpointRoot()),
        trigger_interval_ms=_interval_ms(execution.trigger()),
        start=_start_offsets(execution),
        end=merge(end for end in ends if end is not None),
        only_kafka=bool(ends) and all(end is not None for end in ends),
    )


def task_count(frame: DataFrame) -> int:
    """How many tasks a micro-batch is computed in. Only for frames of foreachBatch: others would be run for it."""
    return int(frame._jdf.queryExecution().toRdd().getNumPartitions())


def is_running(spark: SparkSession, query_id: str) -> bool:
    """False once the query was told to stop."""
    query = spark._jsparkSession.streams().get(query_id)
    return query is not None and bool(query.isActive())


def _execution(spark: SparkSession, query_id: str) -> Any:
    query = spark._jsparkSession.streams().get(query_id)
    invariant(query is not None, f"query {query_id} runs on the session that started it")
    return query.streamingQuery()


def _interval_ms(trigger: Any) -> int | None:
    if trigger.getClass().getSimpleName() == "ProcessingTimeTrigger":
        return int(trigger.intervalMs())
    return None


def _end_offsets(execution: Any, batch_id: int) -> list[Offsets | None]:
    """Of each source that has any; None for one whose offsets are not Kafka's."""
    logged = execution.offsetLog().get(batch_id)
    invariant(logged.isDefined(), f"batch {batch_id} is in the offset log before it runs")
    sequence = logged.get().offsets()
    offsets = (sequence.apply(i) for i in range(sequence.size()))
    return [parse_source_offset(str(offset.get().json())) for offset in offsets if offset.isDefined()]


def _start_offsets(execution: Any) -> Offsets | None:
    """From the plan of the batch: the only place that has them for the first batch too."""
    leaves = execution.lastExecution().logical().collectLeaves()
    starts = []
    for leaf in (leaves.apply(i) for i in range(leaves.size())):
        if leaf.getClass().getSimpleName() != "StreamingDataSourceV2ScanRelation":
            continue
        if not leaf.startOffset().isDefined():
            return None
        starts.append(parse_source_offset(str(leaf.startOffset().get().json())))
    return merge(start for start in starts if start is not None)
