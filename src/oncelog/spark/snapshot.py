"""A changelog topic as the first rows of a stream: the latest value of each key, once, and then nothing more.

With it state that was lost with its checkpoint is rebuilt. A query that keeps, say, sums per key writes them to a
compacted topic with its results; started on a new checkpoint, it reads that topic with the option `snapshot` and the
input from `startingOffsets=committed`, and aggregates the union of both:

    counts = live.selectExpr("key", "1L as n").union(snapshot.selectExpr("key", "cast(cast(value as string) as long)"))
    counts.groupBy("key").agg(sum("n"))

Output and input offsets were committed in one transaction, so the two fit together. On a checkpoint that is intact the
snapshot is over and adds nothing. Its offsets have a shape of their own, so that nobody takes them for input of a
group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from oncelog.client.columns import UNPACKED_BYTES
from oncelog.core.invariant import invariant
from oncelog.spark.offsets import StreamOffset
from oncelog.spark.read_task import RangePartition, read_partition
from oncelog.spark.source_options import SourceOptions
from oncelog.spark.topic_plan import TopicPlan

BEFORE: dict[str, Any] = {"snapshot": {}}
ROWS_PER_BATCH = 50_000


class SnapshotReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        return BEFORE

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """There is nothing to freeze: the one batch there is ends where the topic ends when it is planned."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        if start != BEFORE:
            return start
        plan = TopicPlan(self.options)
        latest = plan.latest_offsets()
        return {"snapshot": StreamOffset(latest.ends, plan.earliest_offsets(latest.ends), latest.topic_ids).to_wire()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        invariant(start == BEFORE, "a snapshot is read in one batch")
        whole = StreamOffset.from_wire(end["snapshot"])
        ranges = TopicPlan(self.options).batch_ranges(StreamOffset({}), whole, is_first=False)
        # A task reads all of a partition: only the whole of it tells the latest value of a key.
        return [RangePartition((one,)) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return latest_per_key(read_partition(self.options, partition))


def latest_per_key(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The last record of each key, tombstones and records without a key left out.

    Holds about two records per key at most: what came is reduced whenever it has as many rows as were left of what came
    before, so that each row is looked at a few times however many there are.
    """
    held: list[pa.Table] = []
    kept_rows = new_rows = 0
    for batch in batches:
        keys = batch.column("key")
        held.append(pa.Table.from_batches([batch.filter(keys.is_valid()) if keys.null_count else batch]))
        new_rows += held[-1].num_rows
        if new_rows >= max(kept_rows, ROWS_PER_BATCH):
            held = [_latest(pa.concat_tables(held))]
            kept_rows, new_rows = held[0].num_rows, 0
    if held:
        latest = _latest(pa.concat_tables(held))
        kept = latest.filter(pc.is_valid(latest.column("value"))).combine_chunks()
        fitting = kept.num_rows * UNPACKED_BYTES // max(kept.nbytes, 1)
        yield from kept.to_batches(max_chunksize=max(1, min(fitting, ROWS_PER_BATCH)))


def _latest(rows: pa.Table) -> pa.Table:
    """The last row of each key."""
    numbered = pa.table({"key": rows.column("key"), "row": np.arange(rows.num_rows)})
    is_last = np.zeros(rows.num_rows, np.bool_)
    is_last[numbered.group_by("key").aggregate([("row", "max")]).column("row_max").to_numpy()] = True
    # Taken by their numbers, they would first be put together with all others, of which a column holds 2 GiB at most.
    return rows.filter(pa.array(is_last))
