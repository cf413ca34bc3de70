"""`format("oncelog")`: topics as a stream or as a table, with the options and the columns of Spark's Kafka source.

Theory of operation. On the driver, one long-lived reader per query plans: it lists offsets and cuts them into ranges
(`topic_plan`). On the executors, each task reads one range and yields Arrow batches as large as the answers of the
broker; a few of them exist at a time however long the range is.

What a batch reads is decided once, when it is planned, and kept in Spark's checkpoint as the batch's end offset (see
`offsets`): where it ends, and where it begins in partitions that it is the first to read. Spark asks anew for the
initial offset whenever it runs the first batch again, so that one is only a mark.

Reading is read_committed unless told otherwise. Ranges are of offsets, not of records: markers, aborted data and
compaction leave gaps, which a task skips silently.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from oncelog.client import worker_client
from oncelog.spark.offsets import NOT_STARTED, Offsets, StreamOffset, to_wire
from oncelog.spark.planning import OffsetRange, group_ranges, limit_offsets, split_ranges
from oncelog.spark.read_task import RangePartition, read_partition
from oncelog.spark.snapshot import SnapshotReader
from oncelog.spark.source_options import OptionError, SourceOptions, includes_headers, parse_source_options
from oncelog.spark.topic_plan import TopicPlan

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp_ltz, timestampType int"
)
HEADERS_SCHEMA = ", headers array<struct<key: string, value: binary>>"


class OncelogDataSource(DataSource):
    """Registered by `oncelog.spark.session()` and `oncelog.spark.register(spark)`."""

    @classmethod
    def name(cls) -> str:
        return "oncelog"

    def schema(self) -> str:
        return SCHEMA + (HEADERS_SCHEMA if includes_headers(self.options) else "")

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(parse_source_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        options = parse_source_options(self.options, streaming=True)
        return SnapshotReader(options) if options.snapshot else TopicStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        _refuse_to_write("write", "write_batch")

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802  # Spark's name
        _refuse_to_write("writeStream", "write_stream")


def _refuse_to_write(method: str, function: str) -> NoReturn:
    raise OptionError(
        f'{method}.format("oncelog") does not write: Spark gives such a writer no way to commit output and input '
        f"offsets in one transaction. Use oncelog.spark.{function}(frame, bootstrap_servers=..., "
        "transactional_id=..., topic=...)"
    )


class TopicReader(DataSourceReader):
    """Topics between two positions, as a table."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        plan = TopicPlan(self.options)
        start, end = starting_offsets(plan, self.options), plan.ending_offsets()
        plan.check_order(start, end)
        return _tasks(plan.ranges(start, end), self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self.options, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Topics as a stream. Lives as long as its query; each task works on a fresh copy."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._plan: TopicPlan | None = None
        self._target: StreamOffset | None = None
        self._latest: StreamOffset | None = None
        self._last_batch_s = -math.inf

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]  # a task's copy starts afresh, without connections

    @property
    def plan(self) -> TopicPlan:
        if self._plan is None:
            self._plan = TopicPlan(self.options)
        return self._plan

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        return NOT_STARTED

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self._target = self.plan.latest_offsets()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        known = StreamOffset.from_wire(start)
        pinned = starting_offsets(self.plan, self.options) if start == NOT_STARTED else None
        latest = self._latest = self.plan.latest_offsets(known)
        if self._target is not None:
            # Only what was there at the start; but of topics that are still the same.
            latest = latest.up_to(self._target.ends)
        begin = self._begin(known, latest, pinned)
        end = {p: max(offset, begin.ends[p]) for p, offset in latest.ends.items()}
        if self._should_wait(begin.ends, end, limit):
            end = begin.ends
        elif isinstance(limit, ReadMaxRows):
            end = limit_offsets(begin.ends, end, limit.max_rows)
        if end != begin.ends:
            self._last_batch_s = time.monotonic()
        elif pinned is None and end == known.ends:
            return start  # what differs from it in a single letter is a batch to Spark
        return StreamOffset(end, begin.first, latest.topic_ids).to_wire()

    def _begin(self, known: StreamOffset, latest: StreamOffset, pinned: Offsets | None) -> StreamOffset:
        if pinned is None:
            return self.plan.begin_of_next(known, latest)
        # A partition whose end is not known yet was made a moment ago: the next batch takes it up.
        there = {p: offset for p, offset in pinned.items() if p in latest.ends}
        begin = self.plan.begin_of_next(StreamOffset(there), latest).ends
        return StreamOffset(begin, first=begin)

    def _should_wait(self, begin: Offsets, end: Offsets, limit: ReadLimit) -> bool:
        """minOffsetsPerTrigger: wait for more, but not for longer than maxTriggerDelay, and never with AvailableNow.

        The first batch does not wait, as in Spark's own source: what is there may have waited for long already.
        """
        wanted = self.options.min_offsets_per_trigger
        if wanted is None or isinstance(limit, ReadAllAvailable) or self._target is not None:
            return False
        waited_ms = (time.monotonic() - self._last_batch_s) * 1000
        ready = sum(end[p] - begin[p] for p in end)
        return ready < wanted and waited_ms < self.options.max_trigger_delay_ms

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        return None if self._latest is None else to_wire(self._latest.ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        before, after = StreamOffset.from_wire(start), StreamOffset.from_wire(end)
        return _tasks(self.plan.batch_ranges(before, after, is_first=start == NOT_STARTED), self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self.options, partition)


def starting_offsets(plan: TopicPlan, options: SourceOptions) -> Offsets:
    """Where to begin. Warns of a group that is to be continued and stands nowhere: often its name is wrong."""
    start = plan.starting_offsets()
    if options.starting.committed:
        committed = worker_client(options.client).group_offsets(options.group_id or "")
        if start and not start.keys() & committed.keys():
            logger.warning(
                "startingOffsets is 'committed', but group %s has committed nothing for %s: everything is read from "
                "the earliest offset. Is kafka.group.id right? It is the group_id of the sink, its transactional_id by "
                "default",
                options.group_id,
                ", ".join(sorted({partition.topic for partition in start})),
            )
    return start


def _tasks(ranges: list[OffsetRange], options: SourceOptions) -> list[InputPartition]:
    if options.min_partitions is None and options.max_records_per_partition is None:
        return [RangePartition(group) for group in group_ranges([one for one in ranges if one.size])]
    pieces = split_ranges(ranges, at_least=options.min_partitions, size_max=options.max_records_per_partition)
    return [RangePartition((piece,)) for piece in pieces]
