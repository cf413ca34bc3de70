"""The exactly-once sink: every micro-batch is one transaction, with its input offsets inside.

Theory of operation. Spark calls the sink in the driver for each micro-batch (`foreachBatch`). The driver owns the
transactional id; all tasks of the batch write with the driver's producer id and epoch, so that what they write on any
number of executors is ONE transaction, which the driver commits together with the end offsets of the batch.

Sequence numbers count from 0 in every task of every batch, so no two batches, and no two attempts at one batch, may
share an epoch: the broker would take the second for a repetition of the first and drop it silently. Over transaction
version 2 the end of a transaction brings a fresh epoch; before it, the sink asks for one.

After any failure the transaction is aborted, a fresh epoch taken, the group's committed offsets read again and the
batch run again: whether the failed attempt committed after all is decided by what is committed, never by what the
attempt believed. A task that is run a second time within one epoch refuses, which fails the attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncelog.client.config import ClientConfig
from oncelog.client.errors import FatalError, KafkaError, ProducerFenced
from oncelog.client.transaction import NO_IDENTITY, TransactionClient
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import ProducerIdAndEpoch, TopicPartition
from oncelog.spark.progress import MicroBatch, running_batch
from oncelog.spark.resume import Verdict, judge, offsets_to_commit
from oncelog.spark.sink_options import BATCH_ATTEMPTS, TRANSACTION_TIMEOUT_MS, SinkOptions, sink_options
from oncelog.spark.source_options import OptionError
from oncelog.spark.spark_session import refuse_unsafe
from oncelog.spark.write_job import Written, run_write_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger(__name__)


class DriverFenced(RuntimeError):
    """A newer driver owns the transactional id. This one must stop: its successor does the work."""


def write_stream(
    frame: DataFrame,
    *,
    bootstrap_servers: str,
    transactional_id: str,
    topic: str | None = None,
    group_id: str | None = None,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    batch_attempts: int = BATCH_ATTEMPTS,
    compression_type: str = "none",
    on_new_checkpoint: str = "refuse",
    kafka: Mapping[str, str] | None = None,
) -> DataStreamWriter:
    """A `DataStreamWriter` that writes each micro-batch and its input offsets in one transaction.

    Set what else the query needs and start it:

        oncelog.spark.write_stream(orders, bootstrap_servers="localhost:9092", transactional_id="orders", topic="out")
            .option("checkpointLocation", "/data/checkpoints/orders").trigger(processingTime="5 seconds").start()

    The rows have the columns of Spark's Kafka sink: `value`, and optionally `key`, `topic`, `partition`, `headers`.
    `transactional_id` names this pipeline for ever: a second driver with the same one fences the first. `group_id` (the
    transactional id unless given) is the group the input offsets are committed for. `kafka` takes client settings
    under Kafka's names.
    """
    options = sink_options(
        bootstrap_servers=bootstrap_servers,
        transactional_id=transactional_id,
        topic=topic,
        group_id=group_id,
        transaction_timeout_ms=transaction_timeout_ms,
        batch_attempts=batch_attempts,
        compression_type=compression_type,
        on_new_checkpoint=on_new_checkpoint,
        kafka=kafka,
    )
    if not frame.isStreaming:
        raise OptionError(
            "write_stream takes a streaming DataFrame; a plain one is written by oncelog.spark.write_batch"
        )
    refuse_unsafe(frame.sparkSession)
    return frame.writeStream.foreachBatch(ExactlyOnceSink(frame.sparkSession, options))


class Identity:
    """The transactional id of one driver: one epoch per attempt at a batch, and the way back after a failure."""

    def __init__(self, config: ClientConfig, transactional_id: str, timeout_ms: int) -> None:
        self.client = TransactionClient(config)
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._fresh = False

    def fresh(self) -> ProducerIdAndEpoch:
        """A producer id and epoch nothing was written with yet. The first call fences older drivers."""
        if self.client.identity == NO_IDENTITY:
            self.client.init(self._transactional_id, self._timeout_ms)
        elif not self._fresh:
            self.client.fresh_epoch()
        self._fresh = False
        return self.client.identity

    def commit(self) -> None:
        self.client.end(commit=True)
        self._fresh = self.client.uses_tv2

    def abandon(self) -> None:
        """Abort what is open, if anything is. Never a blank InitProducerId: that would fence a successor."""
        if self.client.identity == NO_IDENTITY:
            return
        try:
            self.client.end(commit=False)
            self._fresh = self.client.uses_tv2
        except FatalError as error:
            # Nothing was open, or a commit whose answer was lost went through after all: the next epoch tells.
            if error.code != ErrorCode.INVALID_TXN_STATE:
                raise
            self._fresh = False

    def close(self) -> None:
        self.client.close()


@dataclass
class ExactlyOnceSink:
    """The function given to `foreachBatch`. `written` tells of the last batch, for tests and curious people."""

    spark: SparkSession
    options: SinkOptions
    written: Written | None = None
    _identity: Identity | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        batch = running_batch(self.spark, frame, batch_id)
        self._check_timeout(batch)
        identity = self._own_identity()
        for attempt in range(1, self.options.batch_attempts + 1):
            try:
                self.written = self._transact(identity, batch, frame)
                return
            except Exception as error:  # noqa: BLE001  # whatever it was, the transaction must not stay open
                self._recover(identity, batch, attempt, error)

    def _transact(self, identity: Identity, batch: MicroBatch, frame: DataFrame) -> Written | None:
        """One attempt at a micro-batch."""
        # 1. An epoch of our own: fences older drivers, and tasks of earlier attempts that still run.
        producer = identity.fresh()
        # 2. What is committed decides whether this batch is still to be written.
        if self._verdict(identity, batch) is Verdict.SKIP:
            logger.info("batch %d of query %s was committed before: skipped", batch.batch_id, batch.query_id)
            drain(frame)
            return None
        # 3. All tasks write with the driver's producer id and epoch.
        written = run_write_job(
            frame,
            self.options,
            identity=producer,
            transaction_version=identity.client.transaction_version,
            rotation=batch.batch_id,
        )
        # 4. Input offsets and the note that this batch is done join the transaction.
        identity.client.commit_offsets(self.options.group_id, offsets_to_commit(batch, self._stand_in))
        # 5. The decision: output, offsets and note become visible together.
        identity.commit()
        return written

    def _verdict(self, identity: Identity, batch: MicroBatch) -> Verdict:
        return judge(
            batch,
            identity.client.fetch_offsets(self.options.group_id),
            stand_in=self._stand_in,
            group=self.options.group_id,
            on_new_checkpoint=self.options.on_new_checkpoint,
        )

    def _recover(self, identity: Identity, batch: MicroBatch, attempt: int, error: Exception) -> None:
        """Leave no open transaction; raise unless the batch may be tried again."""
        if not isinstance(error, ProducerFenced):
            try:
                identity.abandon()
            except ProducerFenced as fenced:
                error = fenced
            except KafkaError as lost:
                logger.warning("could not abort the transaction of batch %d: %s", batch.batch_id, lost)
        if isinstance(error, ProducerFenced):
            raise self._fenced(batch, error) from error
        if attempt >= self.options.batch_attempts or not _worth_retrying(error):
            raise error
        logger.warning(
            "batch %d of query %s failed (attempt %d of %d) and is run again: %s",
            batch.batch_id,
            batch.query_id,
            attempt,
            self.options.batch_attempts,
            error,
        )

    def _own_identity(self) -> Identity:
        if self._identity is None:
            options = self.options
            self._identity = Identity(options.client, options.transactional_id, options.transaction_timeout_ms)
        return self._identity

    @property
    def _stand_in(self) -> TopicPartition | None:
        return None if self.options.topic is None else TopicPartition(self.options.topic, 0)

    def _check_timeout(self, batch: MicroBatch) -> None:
        interval = batch.trigger_interval_ms
        if interval is not None and interval > self.options.transaction_timeout_ms:
            raise OptionError(
                f"transaction_timeout_ms ({self.options.transaction_timeout_ms}) is below the trigger interval "
                f"({interval} ms): a batch may take that long, and the broker would abort it. Raise "
                "transaction_timeout_ms (and transaction.max.timeout.ms of the broker), or trigger more often"
            )

    def _fenced(self, batch: MicroBatch, error: ProducerFenced) -> DriverFenced:
        return DriverFenced(
            f"batch {batch.batch_id} of query {batch.query_id}: another driver has taken over transactional id "
            f"{self.options.transactional_id}, or the transaction was open for longer than "
            f"{self.options.transaction_timeout_ms} ms. Nothing of this batch is visible. If a second query uses the "
            "same transactional id, give it its own; if the batch is too slow, raise transaction_timeout_ms or make "
            f"batches smaller (maxOffsetsPerTrigger); else this driver was replaced and can go. ({error})"
        )


def _worth_retrying(error: Exception) -> bool:
    """Wrong settings and contradictions stay what they are."""
    from oncelog.spark.resume import CannotResume

    return not isinstance(error, OptionError | CannotResume)


def drain(frame: DataFrame) -> None:
    """Run a batch without writing it. Not running it at all would kill a query that keeps state."""
    frame.write.format("noop").mode("append").save()
