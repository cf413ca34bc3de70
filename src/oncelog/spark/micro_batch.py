"""What Spark knows about the micro-batch it is running: the query, and the offsets of its sources.

A `foreachBatch` function is told only the batch id. The rest is asked of the running query inside the JVM, which has
read or written it in its own checkpoint, on whatever Hadoop file system that lies. The end offsets of batch N are in
the offset log before batch N runs, and a restarted query runs N again with exactly those, and with the time at which
it was planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from oncelog.core.ids import TopicPartition
from oncelog.core.invariant import invariant
from oncelog.spark.offsets import Offsets, StreamOffset, merge, parse_source_offset, uneven

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY_ID_PROPERTY = "sql.streaming.queryId"
STATEFUL_OPERATOR = "org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator"
NOTED_PLAN = "walCommit"
"""What Spark calls the step of a trigger in which a plan goes into the offset log: the trigger that runs it, unless an
earlier run of the query had put it there. Times would not tell: each driver has a clock of its own."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One run of `foreachBatch`. `start` is None when a source's first offsets cannot be seen."""

    query_id: str
    batch_id: int
    checkpoint: str
    start: Offsets | None
    end: Offsets
    query_name: str | None = None
    run_id: str = ""
    """The id of this start of the query."""
    only_kafka: bool = False
    """Whether all sources of the query have Kafka's offsets."""
    planned_ms: int | None = None
    """When Spark planned it. A batch that is run again keeps it, one that is planned again gets another."""
    planned_before: bool = False
    """Whether an earlier run of the query has planned it and may have written it already."""
    appeared: frozenset[TopicPartition] = frozenset()
    """Partitions that no batch before it has read."""
    set_back: frozenset[TopicPartition] = frozenset()
    """Those of them that earlier batches had read further: the partition was cut or created again, and data may be
    lost."""
    is_first_to_read: bool = False
    """Whether the batches before it had no partition to read: no topic matched the pattern yet."""
    uneven_start: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    uneven_end: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    """Partitions that several sources read and have not come equally far in; `start` and `end` have the smallest."""

    @property
    def has_kafka_source(self) -> bool:
        return bool(self.end)

    @property
    def is_first_to_commit(self) -> bool:
        """Whether no batch before it needs to have left a note in the group."""
        return self.batch_id == 0 or self.is_first_to_read

    @property
    def offsets_tell_all(self) -> bool:
        """Whether equal offsets mean equal input."""
        return self.has_kafka_source and self.only_kafka and not self.uneven_start and not self.uneven_end

    @property
    def size_bound(self) -> int | None:
        """How many input records the batch has at most, None when that cannot be known."""
        if self.start is None or not self.only_kafka:
            return None
        return sum(offset - self.start.get(partition, 0) for partition, offset in self.end.items())


class SourceRange(NamedTuple):
    """What a batch reads of one source, whose offsets are Kafka's; None for a start that cannot be seen."""

    start: Offsets | None
    end: Offsets
    appeared: frozenset[TopicPartition] = frozenset()
    set_back: frozenset[TopicPartition] = frozenset()
    is_first: bool = False
    """Whether it is the first of its source that reads anything."""


def running_batch(spark: SparkSession, frame: DataFrame, batch_id: int) -> MicroBatch:
    """Must be called inside the foreachBatch function; `spark` is the session the query was started on."""
    query_id = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)
    invariant(query_id is not None, "foreachBatch runs with the id of its query set")
    execution = execution_of(spark, str(query_id))
    ranges, only_kafka = _ranges(execution, batch_id)
    starts = [source.start for source in ranges if source.start is not None]
    return MicroBatch(
        query_id=str(query_id),
        query_name=execution.name(),
        run_id=str(execution.runId()),
        batch_id=batch_id,
        checkpoint=str(execution.resolvedCheckpointRoot()),
        start=merge(starts) if len(starts) == len(ranges) else None,
        end=merge(source.end for source in ranges),
        only_kafka=only_kafka,
        planned_ms=int(execution.lastExecution().offsetSeqMetadata().batchTimestampMs()),
        planned_before=not execution.getLatestExecutionContext().getDuration(NOTED_PLAN).isDefined(),
        appeared=frozenset().union(*(source.appeared for source in ranges)),
        set_back=frozenset().union(*(source.set_back for source in ranges)),
        is_first_to_read=only_kafka and all(source.is_first for source in ranges),
        uneven_start=uneven(starts),
        uneven_end=uneven(source.end for source in ranges),
    )


def task_count(frame: DataFrame) -> int:
    """How many tasks a micro-batch is computed in. Only for frames of foreachBatch: others would be run for it."""
    return int(frame._jdf.queryExecution().toRdd().getNumPartitions())


def is_running(spark: SparkSession, query_id: str) -> bool:
    """False once the query was told to stop."""
    query = spark._jsparkSession.streams().get(query_id)
    return query is not None and bool(query.isActive())


def keeps_state(spark: SparkSession, query_id: str) -> bool:
    """Whether what a batch gives depends on the batches before it: aggregations, joins and the like.

    Operators are recognised by their class: the names of those that run Python are others.
    """
    from py4j.java_gateway import is_instance_of

    gateway = spark.sparkContext._gateway
    nodes = plan_nodes(execution_of(spark, query_id))
    return any(is_instance_of(gateway, node, STATEFUL_OPERATOR) for node in nodes)


def execution_of(spark: SparkSession, query_id: str) -> Any:
    """The query as Spark runs it, in the JVM."""
    query = spark._jsparkSession.streams().get(query_id)
    invariant(query is not None, f"query {query_id} runs on the session that started it")
    return query.streamingQuery()


def plan_nodes(execution: Any) -> Iterator[Any]:
    """All nodes of the physical plan of the batch that is running, those of tables that were cached too."""
    waiting = [execution.lastExecution().executedPlan()]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(_below(node))


def _below(node: Any) -> Sequence[Any]:
    match str(node.getClass().getSimpleName()):
        case "InMemoryTableScanExec":
            return [node.relation().cachedPlan()]
        case "AdaptiveSparkPlanExec":
            return [node.executedPlan()]
        case name if name.endswith("QueryStageExec"):
            return [node.plan()]
        case _:
            return elements(node.children())


def _ranges(execution: Any, batch_id: int) -> tuple[list[SourceRange], bool]:
    """The range of each source whose offsets are Kafka's; and whether those are all that have any offsets."""
    logged = execution.offsetLog().get(batch_id)
    invariant(logged.isDefined(), f"batch {batch_id} is in the offset log before it runs")
    ends = elements(logged.get().offsets())
    sources = elements(execution.sources())
    invariant(len(ends) == len(sources), "the offset log has an entry for each source")
    started = execution.getLatestExecutionContext().startOffsets()
    ranges: list[SourceRange] = []
    others = 0
    for source, logged_end in zip(sources, ends, strict=True):
        if not logged_end.isDefined():
            continue
        end = parse_source_offset(str(logged_end.get().json()))
        if end is None:
            others += 1
        else:
            ranges.append(source_range(_start(execution, started, source), end))
    return ranges, bool(ranges) and not others


def source_range(start: StreamOffset | None, end: StreamOffset) -> SourceRange:
    """From where the last batch ended. Where this batch is the first to read, its end offset has the start.

    A source that has nothing new ends a batch with the very offset that the last one ended with.
    """
    if start is None:
        return SourceRange(None, end.ends, frozenset(end.ends))
    first = {} if start == end else end.first
    appeared = frozenset((end.ends.keys() - start.ends.keys()) | first.keys())
    set_back = frozenset(partition for partition, offset in first.items() if offset < start.ends.get(partition, 0))
    return SourceRange({**start.ends, **first}, end.ends, appeared, set_back, is_first=not start.ends)


def _start(execution: Any, started: Any, source: Any) -> StreamOffset | None:
    """Where the last batch ended in a source. For the first batch it is in the plan, unless it is in the end offset."""
    offset = started.get(source)
    if not offset.isDefined():
        leaves = elements(execution.lastExecution().logical().collectLeaves())
        scans = [leaf for leaf in leaves if leaf.getClass().getSimpleName() == "StreamingDataSourceV2ScanRelation"]
        own = [leaf for leaf in scans if leaf.stream().equals(source)]
        if not own or not own[0].startOffset().isDefined():
            return None
        offset = own[0].startOffset()
    return parse_source_offset(str(offset.get().json()))


def elements(sequence: Any) -> Sequence[Any]:
    """The elements of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]
