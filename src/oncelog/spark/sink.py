"""The exactly-once sink: every micro-batch is one transaction, with its input offsets inside.

Theory of operation. Spark calls the sink in the driver for each micro-batch (`foreachBatch`). The driver owns the
transactional id; all tasks of the batch write with the driver's producer id and epoch, so that what they write on any
number of executors is ONE transaction, which the driver commits together with the end offsets of the batch.

After any failure the transaction is aborted, a fresh epoch taken (see `identity`), the group's committed offsets read
again and the batch run again: whether the failed attempt committed after all is decided by what is committed, never by
what the attempt believed. A task that Spark runs a second time within one epoch refuses, which fails the attempt.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from oncelog.client import KafkaError, TransactionClient, WorkerClient, worker_client
from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.spark.batch_report import REPORTS_MAX, BatchReport
from oncelog.spark.checkpoint import DEFAULT_LOCATION, is_made_up
from oncelog.spark.first_commit import leave_mark, mark_of, marks_left
from oncelog.spark.identity import Identity
from oncelog.spark.micro_batch import MicroBatch, is_running, keeps_state, running_batch
from oncelog.spark.resume import (
    Committed,
    Verdict,
    changed_offsets,
    check_tables,
    former_id,
    judge,
    offsets_to_commit,
    writers_before,
)
from oncelog.spark.rows import plain_columns
from oncelog.spark.sink_options import (
    SinkOptions,
    sink_options,
)
from oncelog.spark.small_batch import SmallBatches
from oncelog.spark.source_options import OptionError
from oncelog.spark.spark_session import UnsafeSetting, refuse_kept_files, refuse_unsafe
from oncelog.spark.table_versions import TablesOfQuery
from oncelog.spark.transactor import Transactor
from oncelog.spark.write_job import Written, run_write_job

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger(__name__)

OFFSET_LOG_VERSION = "spark.sql.streaming.offsetLog.formatVersion"
ALL_OFFSETS_S = 3600.0
"""How often offsets that have not moved are committed too: brokers forget each by itself, after a week by default."""
LOOKUPS_MAX = 10
LOOKUP_PAUSE_S = 0.5


def write_stream(
    frame: DataFrame,
    *,
    bootstrap_servers: str,
    transactional_id: str,
    topic: str | None = None,
    group_id: str | None = None,
    dead_letter_topic: str | None = None,
    transaction_timeout_ms: int | None = None,
    batch_attempts: int | None = None,
    compression_type: str | None = None,
    max_request_size: int | None = None,
    on_new_checkpoint: str | None = None,
    kafka: Mapping[str, str] | None = None,
) -> DataStreamWriter:
    """A `DataStreamWriter` that writes each micro-batch and its input offsets in one transaction.

    Set what else the query needs and start it:

        writer = oncelog.spark.write_stream(
            rows, bootstrap_servers="localhost:9092", transactional_id="orders", topic="out"
        )
        writer.option("checkpointLocation", "/data/checkpoints/orders").trigger(processingTime="5 seconds").start()

    The rows have the columns of Spark's Kafka sink: `value`, and optionally `key`, `topic`, `partition`, `headers`.

    `transactional_id` names this pipeline for ever: a second driver with the same one fences the first. `group_id`
    (the transactional id unless given) is the group the input offsets are committed for. Rows that no topic can take
    (no topic, an unknown one, a wrong partition, too large, ...) fail the query, or go to `dead_letter_topic` within
    the same transaction. `on_new_checkpoint` is "refuse" or "reprocess". `kafka` takes client settings under Kafka's
    names.
    """
    options = sink_options(
        bootstrap_servers=bootstrap_servers,
        transactional_id=transactional_id,
        topic=topic,
        group_id=group_id,
        dead_letter_topic=dead_letter_topic,
        transaction_timeout_ms=transaction_timeout_ms,
        batch_attempts=batch_attempts,
        compression_type=compression_type,
        max_request_size=max_request_size,
        on_new_checkpoint=on_new_checkpoint,
        kafka=kafka,
    )
    if not frame.isStreaming:
        raise OptionError("write_stream takes a streaming DataFrame; a plain one is for oncelog.spark.write_batch")
    plain_columns(frame, options.topic)
    refuse_unsafe(frame.sparkSession)
    refuse_other_offset_logs(frame.sparkSession)
    from oncelog.spark.stream_writer import writer_for

    return writer_for(frame, ExactlyOnceSink(frame.sparkSession, Transactor(options)))


@dataclass(frozen=True)
class KnownGroup:
    """What a run of a query knows of its group: fetched once, and then kept up with what the sink commits itself.

    It is asked for again after any failure. Whether somebody else has written is looked up before each commit, for the
    partitions that are committed.
    """

    run_id: str
    committed: Committed
    all_committed_s: float = -math.inf
    """When this run has last committed all its offsets."""

    def after(self, offsets: Committed, *, is_all: bool) -> KnownGroup:
        all_committed_s = time.monotonic() if is_all else self.all_committed_s
        return KnownGroup(self.run_id, {**self.committed, **offsets}, all_committed_s)


class GroupMoved(RuntimeError):
    """The group's offsets are not what they were when the batch was judged."""


@dataclass
class ExactlyOnceSink:
    """The function given to `foreachBatch`. `written` describes the last batch; None when it was skipped."""

    spark: SparkSession
    transactor: Transactor
    written: Written | None = None
    _columns: dict[str, Column] | None = None
    _committed_for: str | None = None
    _group: KnownGroup | None = None
    _tried: tuple[tuple[str, int], Committed] | None = None
    """The run and batch that were last about to be committed, and what the group had before. If that batch is run
    again, it may have been written."""
    _reports: deque[BatchReport] = field(default_factory=lambda: deque(maxlen=REPORTS_MAX))
    _small: SmallBatches = field(default_factory=SmallBatches)
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _tables: TablesOfQuery = field(init=False)

    def __post_init__(self) -> None:
        self._tables = TablesOfQuery(self.spark)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if not self._busy.acquire(blocking=False):
            raise OptionError(
                "two queries were started from one write_stream(...): call it for each query, with a transactional_id "
                "of its own"
            )
        try:
            self._run(frame, batch_id)
        finally:
            self._busy.release()

    def _run(self, frame: DataFrame, batch_id: int) -> None:
        refuse_other_offset_logs(self.spark)
        batch = running_batch(self.spark, frame, batch_id)
        refuse_unsafe_checkpoint(self.spark, batch)
        self.claim(batch.query_id)
        what = f"batch {batch_id} of query {batch.query_id}"
        attempts = itertools.count(1)
        self.written = self.transactor.run(
            what,
            lambda identity: self._write(identity, batch, frame, attempt=next(attempts)),
            wanted=lambda: is_running(self.spark, batch.query_id),
        )
        self._tables.renew(batch)

    def report(self, batch_id: int) -> BatchReport | None:
        """The report of one of the newest batches."""
        return next((report for report in reversed(self._reports) if report.batch_id == batch_id), None)

    def claim(self, query_id: str) -> None:
        """Note that this sink serves the query, and close those of ended queries, which Spark does not tell."""
        with _open_sinks_lock:
            if _open_sinks.get(query_id) is self:
                return
            for other_id, other in list(_open_sinks.items()):
                is_over = other_id == query_id or not other._is_running(other_id)
                if other is self or (is_over and other._close_unless_busy()):
                    del _open_sinks[other_id]
            _open_sinks[query_id] = self

    def _close_unless_busy(self) -> bool:
        """A query that was told to stop may still be in its last batch, and waiting for it could be mutual."""
        if not self._busy.acquire(blocking=False):
            return False
        try:
            self.transactor.close()
        finally:
            self._busy.release()
        return True

    def _is_running(self, query_id: str) -> bool:
        return self.spark.sparkContext._jsc is not None and is_running(self.spark, query_id)

    def _write(self, identity: Identity, batch: MicroBatch, frame: DataFrame, *, attempt: int) -> Written | None:
        """One attempt at a micro-batch, in an epoch of its own: older drivers and earlier attempts are fenced."""
        options, producer = self.transactor.options, identity.client.identity
        if batch.only_kafka and not batch.end and options.batch_id_partition is None:
            # No topic matches the pattern yet: there are no rows, and nothing that could be noted, or done twice.
            drain(frame)
            self._reports.append(BatchReport(batch.batch_id, attempt, producer))
            return Written(0, 0, ())
        group, self._group = self._group, None
        if group is None or group.run_id != batch.run_id:
            self._fence_former_id(identity, batch)
            group = KnownGroup(batch.run_id, identity.client.fetch_offsets(options.group_id))
        committed = group.committed
        known = only_existing_partitions(options, batch, committed)
        tables = self._tables.read_by(batch)
        offsets = offsets_to_commit(known, options.batch_id_partition, options.transactional_id, tables)
        # 1. What is committed decides whether this batch is still to be written.
        if self._verdict(known, committed) is Verdict.SKIP:
            if tables is not None:
                check_tables(known, committed, tables)
            drain(frame)
            self._group = group
            self._reports.append(BatchReport(batch.batch_id, attempt))
            return None
        self._fence_others(identity, known, committed, offsets)
        # 2. All tasks write with the driver's producer id and epoch.
        failpoints.hit("spark.sink.before_write")
        began_s = time.monotonic()
        written = run_write_job(
            frame,
            options,
            identity.client,
            columns=self._plain_columns(frame),
            batch=batch,
            small=self._small if attempt == 1 else None,
        )
        written_s = time.monotonic()
        # 3. Input offsets, and the note that this batch is done, join the transaction.
        failpoints.hit("spark.sink.before_offsets")
        committing = (
            changed_offsets(known, offsets, committed)
            if group.all_committed_s > time.monotonic() - ALL_OFFSETS_S
            else offsets
        )
        self._check_unmoved(identity, committed, committing)
        if batch.is_first_to_commit:
            leave_mark(self.spark, batch.checkpoint, mark_of(options.group_id, committed, offsets))
        failpoints.hit("spark.sink.after_last_look")
        identity.client.commit_offsets(options.group_id, committing)
        # 4. The decision: output, offsets and note become visible together.
        failpoints.hit("spark.sink.before_commit")
        self._tried = (batch.run_id, batch.batch_id), committed
        identity.commit()
        self._committed_for = batch.query_id
        self._group = group.after(committing, is_all=committing is offsets)
        self._reports.append(
            BatchReport(
                batch.batch_id,
                attempt,
                producer,
                rows=written.records,
                size_bytes=written.size_bytes,
                rows_by_topic=written.records_by_topic,
                write_ms=round((written_s - began_s) * 1000),
                commit_ms=round((time.monotonic() - written_s) * 1000),
            )
        )
        failpoints.hit("spark.sink.after_commit")
        return written

    def _fence_former_id(self, identity: Identity, batch: MicroBatch) -> None:
        """The query may have got another transactional id: a driver with the one before could still commit a batch that
        this one writes too, and a transaction that it left open would have to be waited for."""
        options = self.transactor.options
        # Offsets that are pending are not waited for: they may be those of the very driver that is to be fenced.
        committed = identity.client.fetch_offsets(options.group_id, require_stable=False)
        former = former_id(batch, committed, options.transactional_id)
        if former is None:
            return
        logger.warning(
            "query %s has committed with transactional id %s, and has %s now: fencing what goes on under the old one",
            batch.query_id,
            former,
            options.transactional_id,
        )
        self._fence(identity, former)

    def _fence_others(self, identity: Identity, batch: MicroBatch, committed: Committed, offsets: Committed) -> None:
        """Another query may be about to commit where this one goes on: it would see its offsets too late."""
        options = self.transactor.options
        others = writers_before(batch, committed, options.batch_id_partition, options.transactional_id)
        if not others:
            return
        for other in sorted(others):
            logger.warning(
                "query %s goes on in group %s where another query was, with transactional id %s: fencing that one",
                batch.query_id,
                options.group_id,
                other,
            )
            self._fence(identity, other)
        self._check_unmoved(identity, committed, offsets)

    def _fence(self, identity: Identity, transactional_id: str) -> None:
        try:
            TransactionClient(identity.client).init(transactional_id, self.transactor.options.transaction_timeout_ms)
        except KafkaError as error:
            if error.code != ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                raise
            logger.warning("transactional id %s may not be used by this query: it is not fenced", transactional_id)

    def _check_unmoved(self, identity: Identity, before: Committed, offsets: Committed) -> None:
        """Raise GroupMoved when somebody else has written where this batch is going to. The next attempt judges it."""
        group = self.transactor.options.group_id
        now = identity.client.fetch_offsets(group, list(offsets))
        for partition in sorted(offsets):
            if now.get(partition) != before.get(partition):
                raise GroupMoved(f"{partition}: somebody else has committed an offset for group {group} meanwhile")

    def _plain_columns(self, frame: DataFrame) -> dict[str, Column]:
        """The same for every batch of a query."""
        if self._columns is None:
            self._columns = plain_columns(frame, self.transactor.options.topic)
        return self._columns

    def _verdict(self, batch: MicroBatch, committed: Committed) -> Verdict:
        options = self.transactor.options
        return judge(
            batch,
            committed,
            batch_id_partition=options.batch_id_partition,
            group=options.group_id,
            on_new_checkpoint=options.on_new_checkpoint,
            keeps_state=lambda: keeps_state(self.spark, batch.query_id),
            marks_left=lambda: marks_left(self.spark, batch.checkpoint),
            has_committed=self._committed_for == batch.query_id,
            tried_on=tried[1] if (tried := self._tried) and tried[0] == (batch.run_id, batch.batch_id) else None,
        )


_open_sinks: dict[str, ExactlyOnceSink] = {}
"""The sinks of this process that have connections, by query id; the last query that ended may be among them."""
_open_sinks_lock = threading.Lock()


def sink_of(query_id: str) -> ExactlyOnceSink | None:
    """The sink of a query of this process, while it runs and until another one is started."""
    return _open_sinks.get(query_id)


def only_existing_partitions(options: SinkOptions, batch: MicroBatch, committed: Committed) -> MicroBatch:
    """The batch without the input partitions that the sink's cluster does not have: it takes no offsets for them.

    Topics of another cluster, or deleted ones. When none is left the batch id is committed in their place, as for
    sources without Kafka's offsets.
    """
    client = worker_client(options.client)
    facts = client.topic_facts({partition.topic for partition in batch.end})
    if all(p.topic in facts and p.partition < facts[p.topic].partitions for p in batch.end):
        return batch
    # Partitions may have been added since they were counted.
    there = _partitions_there(client, batch, committed)
    if len(there) == len(batch.end):
        return batch
    if not there and options.batch_id_partition is None:
        foreign = ", ".join(sorted({partition.topic for partition in batch.end}))
        raise OptionError(
            f"the input ({foreign}) is not on the sink's cluster {options.client.bootstrap_servers}, which can commit "
            "no offsets for it: batch ids are kept under the output topic instead, so give the sink a topic"
        )
    return replace(batch, end={partition: batch.end[partition] for partition in there}, only_kafka=False)


def _partitions_there(client: WorkerClient, batch: MicroBatch, committed: Committed) -> set[TopicPartition]:
    """Those of the batch that the cluster has. If one with a committed offset is missing, they are looked up again for
    a while: a broker that starts may not know of all topics yet."""
    for lookups_left in reversed(range(LOOKUPS_MAX)):
        found = client.partitions_of({partition.topic for partition in batch.end})
        there = {partition for partition in batch.end if partition in found.get(partition.topic, ())}
        if not lookups_left or not (batch.end.keys() & committed.keys()) - there:
            break
        time.sleep(LOOKUP_PAUSE_S)
    return there


def refuse_other_offset_logs(spark: SparkSession) -> None:
    """Raise UnsafeSetting for a checkpoint format that the offsets of a batch cannot be read from."""
    version = spark.conf.get(OFFSET_LOG_VERSION, "1")
    if version != "1":
        raise UnsafeSetting(
            f"{OFFSET_LOG_VERSION} is {version}: the sink reads the offsets of a batch from Spark's offset log, and "
            f"knows format 1 only. Set it to 1, with a new checkpoint where the old one was written otherwise"
        )


def refuse_unsafe_checkpoint(spark: SparkSession, batch: MicroBatch) -> None:
    """Raise OptionError for a checkpoint that the query would not find again, UnsafeSetting for one with state that
    would not be replaced when a batch is run again."""
    default = spark.conf.get(DEFAULT_LOCATION, None)
    if is_made_up(batch.checkpoint, default_location=default, query_name=batch.query_name):
        raise OptionError(
            f"the query has no checkpointLocation, and Spark made up {batch.checkpoint}: started again, it would have "
            "forgotten its state and what it was about to write. Give it one: "
            '.option("checkpointLocation", ...), the same at every start'
        )
    try:
        refuse_kept_files(spark, batch.checkpoint)
    except UnsafeSetting:
        if keeps_state(spark, batch.query_id):
            raise


def drain(frame: DataFrame) -> None:
    """Run a batch without writing it. Not running it at all would kill a query that keeps state."""
    frame.write.format("noop").mode("append").save()
