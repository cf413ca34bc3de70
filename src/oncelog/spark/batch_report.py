"""What became of micro-batches, where Spark's users look: in the progress of their query.

To Spark the sink is a function, so it reports `ForeachBatchSink` with -1 rows, and our source by the name of a class.
`last_progress(query)` is Spark's last report with these places filled in, and `on_progress` hands each of them to a
function as it comes, as a listener of Spark's does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oncelog.core.ids import ProducerIdAndEpoch
from oncelog.spark.offsets import Offsets, parse_source_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery

REPORTS_MAX = 100
"""How many reports of a query are kept, the newest: as many as Spark keeps of its own."""
SOURCE_CLASS = "PythonMicroBatchStream"


@dataclass(frozen=True, slots=True)
class BatchReport:
    batch_id: int
    attempts: int
    producer: ProducerIdAndEpoch | None = None
    """The producer that wrote it; None when it was skipped, because it had been committed before."""
    rows: int = 0
    size_bytes: int = 0
    """The size of the record batches, as they were sent."""
    rows_by_topic: Mapping[str, int] = field(default_factory=dict)
    write_ms: int = 0
    commit_ms: int = 0

    def metrics(self, dead_letter_topic: str | None) -> dict[str, str]:
        """As Spark has the metrics of sinks."""
        values: dict[str, Any] = {"skipped": str(self.producer is None).lower(), "attempts": self.attempts}
        if self.producer is not None:
            values |= {
                "bytes": self.size_bytes,
                "producerId": self.producer.producer_id,
                "producerEpoch": self.producer.epoch,
                "writeMs": self.write_ms,
                "commitMs": self.commit_ms,
            }
            values |= {f"rows.{topic}": rows for topic, rows in sorted(self.rows_by_topic.items())}
        if dead_letter_topic is not None:
            values["deadLetters"] = self.rows_by_topic.get(dead_letter_topic, 0)
        return {name: str(value) for name, value in values.items()}


def last_progress(query: StreamingQuery) -> dict[str, Any] | None:
    """The last progress of a query, as `query.lastProgress` has it, completed by what source and sink know.

    The sink says where it writes and how many rows the batch had; its metrics are bytes, producer id and epoch,
    attempts, the time of writing and of committing, and rows by topic. Sources name their topics, and how far behind
    they are. None before the first batch.
    """
    last = query.lastProgress
    return None if last is None else _completed(json.loads(last.json))


def on_progress(spark: SparkSession, function: Callable[[dict[str, Any]], None]) -> StreamingQueryListener:
    """Call a function with the `last_progress` of every query of the session, batch by batch.

    Returns the listener: `spark.streams.removeListener` ends it.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # Spark's name
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802  # Spark's name
            function(_completed(json.loads(event.progress.json)))

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802  # Spark's name
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  # Spark's name
            pass

    listener = Listener()
    spark.streams.addListener(listener)
    return listener


def _completed(spark_progress: dict[str, Any]) -> dict[str, Any]:
    from oncelog.spark.sink import sink_of

    sink = sink_of(str(spark_progress["id"]))
    completed = {**spark_progress, "sources": [source_progress(source) for source in spark_progress["sources"]]}
    if sink is not None:
        options, report = sink.transactor.options, sink.report(int(spark_progress["batchId"]))
        where = options.topic or "topics of rows"
        described = {"description": f"oncelog[{where}, transactional id {options.transactional_id}]"}
        completed["sink"] = {**spark_progress["sink"], **described}
        if report is not None:
            metrics = report.metrics(options.dead_letter_topic)
            completed["sink"] |= {"numOutputRows": report.rows, "metrics": metrics}
    return completed


def source_progress(source: dict[str, Any]) -> dict[str, Any]:
    """With topics and lag, if its offsets are Kafka's."""
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if end is None or SOURCE_CLASS not in source["description"]:
        return source
    topics = ", ".join(sorted({partition.topic for partition in end}))
    behind = [max(0, offset - end.get(partition, 0)) for partition, offset in (latest or end).items()]
    lag = {
        "offsetsBehindLatest": sum(behind),
        "maxOffsetsBehindLatest": max(behind, default=0),
        "minOffsetsBehindLatest": min(behind, default=0),
    }
    return {**source, "description": f"oncelog[{topics}]", "metrics": {name: str(value) for name, value in lag.items()}}


def _offsets(value: Any) -> Offsets | None:
    found = None if value is None else parse_source_offset(json.dumps(value))
    return None if found is None else found.ends
