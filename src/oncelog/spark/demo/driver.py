"""The driver of the demo, a process that can be killed and started again: `python -m oncelog.spark.demo.driver ORDER`.

Three queries write the enriched orders with three guarantees, side by side on the same input; a fourth counts revenue
from the exactly-once output. It ends when all input is written and counted.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oncelog.spark
from oncelog.client import ClientConfig
from oncelog.core import failpoints
from oncelog.spark.demo.events import EventLog
from oncelog.spark.demo.guarantees import AtLeastOnce, AtMostOnce, Recorded, running_lane
from oncelog.spark.demo.hold import Hold
from oncelog.spark.demo.pipeline import GUARANTEES, Topics, enriched_orders, revenue
from oncelog.spark.sink import ExactlyOnceSink
from oncelog.spark.sink_options import SinkOptions
from oncelog.spark.transactor import Transactor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FIRST_BATCH_WAIT_S = 15.0
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "768m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


@dataclass(frozen=True, slots=True)
class DriverOrder:
    """What a driver is told, as JSON on its command line."""

    servers: str
    master: str
    prefix: str
    folder: str
    per_batch: int

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @property
    def topics(self) -> Topics:
        return Topics(self.prefix)

    @property
    def events(self) -> EventLog:
        return EventLog(Path(self.folder) / "events.jsonl")

    @property
    def hold(self) -> Hold:
        return Hold(Path(self.folder))

    def checkpoint(self, query: str) -> str:
        return str(Path(self.folder) / "checkpoints" / query)


def main() -> None:
    order = DriverOrder(**json.loads(sys.argv[1]))
    local = {"spark.driver.host": "127.0.0.1"} if "127.0.0.1" in order.master else {}
    spark = oncelog.spark.session("oncelog demo", master=order.master, config={**QUIET, **local})
    failpoints.arm("spark.sink.before_commit", lambda: order.hold.wait_here(running_lane()))
    queries = [start_enriching(spark, order, guarantee) for guarantee in GUARANTEES]
    counting = start_counting(spark, order)
    for query in queries:
        query.awaitTermination()
    counting.processAllAvailable()
    counting.stop()
    spark.stop()


def start_enriching(spark: SparkSession, order: DriverOrder, guarantee: str) -> StreamingQuery:
    rows = enriched_orders(spark, order.servers, order.topics, guarantee, per_batch=order.per_batch)
    sink = make_sink(spark, order, guarantee)
    return _start(spark, order, guarantee, rows, sink, {"availableNow": True})


def start_counting(spark: SparkSession, order: DriverOrder) -> StreamingQuery:
    rows = revenue(spark, order.servers, order.topics)
    sink = exactly_once(spark, order, "revenue", order.topics.revenue)
    return _start(spark, order, "revenue", rows, sink, {"processingTime": "5 seconds"}, output_mode="update")


def make_sink(spark: SparkSession, order: DriverOrder, guarantee: str) -> ExactlyOnceSink | AtLeastOnce | AtMostOnce:
    topic = order.topics.enriched(guarantee)
    config = ClientConfig(bootstrap_servers=order.servers)
    if guarantee == "exactly-once":
        return exactly_once(spark, order, guarantee, topic)
    if guarantee == "at-least-once":
        return AtLeastOnce(config, topic, order.hold)
    return AtMostOnce(spark, config, topic, order.topics.query_id(guarantee), order.events, order.hold)


def exactly_once(spark: SparkSession, order: DriverOrder, query: str, topic: str) -> ExactlyOnceSink:
    options = SinkOptions(
        client=ClientConfig(bootstrap_servers=order.servers),
        transactional_id=order.topics.query_id(query),
        group_id=order.topics.query_id(query),
        topic=topic,
    )
    return ExactlyOnceSink(spark, Transactor(options))


def _start(
    spark: SparkSession,
    order: DriverOrder,
    name: str,
    rows: DataFrame,
    sink: ExactlyOnceSink | AtLeastOnce | AtMostOnce,
    trigger: dict[str, Any],
    output_mode: str = "append",
) -> StreamingQuery:
    # A pool of its own for each query: within one pool jobs run in the order they came, and one query would go ahead.
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
    recorded = Recorded(name, spark, sink, order.events)
    writer = rows.writeStream.foreachBatch(recorded).outputMode(output_mode).queryName(name)
    query = writer.option("checkpointLocation", order.checkpoint(name)).trigger(**trigger).start()
    _await_first_batch(query)
    return query


def _await_first_batch(query: StreamingQuery) -> None:
    """Queries that start all at once keep each other's Python processes from starting within Spark's ten seconds."""
    deadline_s = time.monotonic() + FIRST_BATCH_WAIT_S
    while query.isActive and time.monotonic() < deadline_s and not query.status["isTriggerActive"]:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
