"""The same pipeline written with the two weaker guarantees, to show what they cost.

At-least-once is what Spark's own Kafka sink does: write, then let Spark note that the batch is done. What was written
by a run that did not get that far is written again. At-most-once notes first and writes then: what a run did not get
to write is gone.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncelog.client import ClientConfig, SharedTransaction, worker_client
from oncelog.spark.demo.events import EventLog
from oncelog.spark.demo.hold import Hold
from oncelog.spark.micro_batch import running_batch
from oncelog.spark.resume import NewCheckpoint, Verdict, judge, offsets_to_commit
from oncelog.spark.rows import plain_columns
from oncelog.spark.sink import ExactlyOnceSink, drain
from oncelog.spark.sink_options import SINK_TABLE
from oncelog.spark.write_job import TaskOrders, Written, run_orders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPTS = 3


_running = threading.local()


def running_lane() -> str:
    """The query whose batch this thread runs."""
    return str(_running.lane)


def plain_orders(config: ClientConfig, topic: str, *, may_run_again: bool) -> TaskOrders:
    return TaskOrders(
        client=config,
        transaction=SharedTransaction(topics=worker_client(config).topics_now([topic])),
        compression_type="none",
        max_request_size=SINK_TABLE.defaults.integer("max_request_size"),
        topic=topic,
        dead_letter_topic=None,
        first_partition=0,
        may_run_again=may_run_again,
    )


@dataclass
class AtLeastOnce:
    config: ClientConfig
    topic: str
    hold: Hold
    written: Written | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        orders = plain_orders(self.config, self.topic, may_run_again=True)
        columns = plain_columns(frame, self.topic)
        for attempt in range(ATTEMPTS):
            try:
                self.written = run_orders(frame, columns, orders)
                break
            except Exception:
                # At least once: again, whatever of it was written already.
                if attempt == ATTEMPTS - 1:
                    raise
        self.hold.wait_here(running_lane())


@dataclass
class AtMostOnce:
    spark: SparkSession
    config: ClientConfig
    topic: str
    group_id: str
    events: EventLog
    hold: Hold
    written: Written | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        batch = running_batch(self.spark, frame, batch_id)
        client = worker_client(self.config)
        committed = client.group_offsets(self.group_id, require_stable=True)
        verdict = judge(
            batch,
            committed,
            batch_id_partition=None,
            group=self.group_id,
            on_new_checkpoint=NewCheckpoint.REPROCESS,
            keeps_state=lambda: False,
            marks_left=frozenset,
        )
        self.written = None
        if verdict is Verdict.SKIP:
            drain(frame)
            return
        client.alter_group_offsets(self.group_id, offsets_to_commit(batch, None))
        self.hold.wait_here(running_lane())
        try:
            orders = plain_orders(self.config, self.topic, may_run_again=False)
            self.written = run_orders(frame, plain_columns(frame, self.topic), orders)
        except Exception:  # noqa: BLE001  # at most once: whatever it was, the batch is not tried again
            self.events.add("at-most-once", "lost", batch=batch_id)


@dataclass
class Recorded:
    """Tells the event log about every batch of a query."""

    lane: str
    spark: SparkSession
    inner: ExactlyOnceSink | AtLeastOnce | AtMostOnce
    events: EventLog

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        position = sum(running_batch(self.spark, frame, batch_id).end.values())
        self.events.add(self.lane, "begin", batch=batch_id)
        _running.lane = self.lane
        try:
            self.inner(frame, batch_id)
        except Exception:
            self.events.add(self.lane, "failed", batch=batch_id)
            raise
        written = self.inner.written
        what = "skipped" if written is None else "done"
        self.events.add(self.lane, what, batch=batch_id, rows=written.records if written else 0, position=position)
