"""What `write_stream` returns: Spark's own writer, which refuses what would go past the exactly-once sink."""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.streaming.readwriter import DataStreamWriter

from oncelog.spark.source_options import OptionError

WITHOUT_MICRO_BATCHES = {"continuous": "a continuous query", "realTime": "a query in real-time mode"}


class ExactlyOnceWriter(DataStreamWriter):
    def trigger(self, **given: Any) -> DataStreamWriter:
        for name, what in WITHOUT_MICRO_BATCHES.items():
            if given.get(name) is not None:
                raise OptionError(
                    f"trigger({name}=...): {what} has no micro-batches that could be transactions, and Spark runs "
                    "neither sinks nor sources of Python in it. Use trigger(processingTime=...), with '0 seconds' for "
                    "batches as fast as possible, or trigger(availableNow=True)"
                )
        return super().trigger(**given)

    def format(self, source: str) -> DataStreamWriter:
        _refuse(f'format("{source}")')

    def foreach(self, f: Any) -> DataStreamWriter:
        _refuse("foreach(...)")

    def foreachBatch(self, func: Any) -> DataStreamWriter:  # noqa: N802  # Spark's name
        _refuse("foreachBatch(...)")

    def toTable(self, tableName: str, *_: Any, **__: Any) -> Any:  # noqa: N802, N803  # Spark's names
        _refuse(f'toTable("{tableName}")')


def writer_for(frame: Any, sink: Any) -> ExactlyOnceWriter:
    writer = ExactlyOnceWriter(frame)
    DataStreamWriter.foreachBatch(writer, sink)
    return writer


def _refuse(call: str) -> NoReturn:
    raise OptionError(
        f"{call} would take the place of the exactly-once sink: leave it out, or use frame.writeStream.{call} in place "
        "of oncelog.spark.write_stream"
    )
