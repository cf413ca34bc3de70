"""The queries that are measured, and how: streaming queries over what a topic holds, timed by Spark's own reports.

A rate is rows divided by the sum of `triggerExecution` of all micro-batches: everything Spark does for a batch, from
asking for the latest offsets to its own commit. Starting a query is not part of it, on either side.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import oncelog.spark

QUERY_TIMEOUT_S = 120


class QueryFailed(RuntimeError):
    """A query did not end by itself in time."""


@dataclass(frozen=True, slots=True)
class Timing:
    batches_ms: tuple[float, ...]
    """What Spark reports for each batch that had input."""
    rows: int
    """What Spark says it has read."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Where rows come from: `format` is `oncelog` or `kafka`."""

    spark: Any
    format: str
    servers: str

    def stream(self, topic: str, per_batch: int) -> Any:
        reader = self.spark.readStream.format(self.format).option("kafka.bootstrap.servers", self.servers)
        options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(per_batch)}
        return reader.options(**options).load()


def to_noop(frame: Any) -> Any:
    return frame.writeStream.format("noop")


def to_connector(frame: Any, servers: str, topic: str) -> Any:
    """Spark's connector: at least once."""
    return frame.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic)


def to_oncelog(frame: Any, servers: str, topic: str) -> Any:
    """One transaction per micro-batch, input offsets in it."""
    return oncelog.spark.write_stream(frame, bootstrap_servers=servers, topic=topic, transactional_id=f"copy-{topic}")


def to_function(frame: Any, function: Callable[[Any, int], None]) -> Any:
    return frame.writeStream.foreachBatch(function)


def run_to_end(writer: Any, checkpoint: str) -> Timing:
    """Run a query over everything there is."""
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(QUERY_TIMEOUT_S):
            raise QueryFailed(f"the query did not end within {QUERY_TIMEOUT_S} s")
    finally:
        query.stop()
    reports = [json.loads(report.json) for report in query.recentProgress]
    batches = [report for report in reports if "addBatch" in report["durationMs"]]
    return Timing(
        tuple(float(report["durationMs"]["triggerExecution"]) for report in batches),
        sum(report["numInputRows"] for report in batches),
    )


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
