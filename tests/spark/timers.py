"""A query with state and timers: of each key it writes how many records came, once its timer has gone off.

python timers.py SERVERS SOURCE TARGET CHECKPOINT
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import oncelog.spark

TIMER_MS = 1000


class CountUntilTimer(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N803  # Spark's names
        before = self._count.get()[0] if self._count.exists() else 0
        times = [row["timestamp"] for row in rows]
        self._count.update((before + len(times),))
        self._handle.registerTimer(int(min(times).timestamp() * 1000) + TIMER_MS)
        return iter(())

    def handleExpiredTimer(self, key: Any, **_: Any) -> Iterator[Row]:
        yield Row(key=key[0], value=str(self._count.get()[0]))

    def close(self) -> None:
        pass


def main(servers: str, source: str, target: str, checkpoint: str) -> None:
    spark = oncelog.spark.session(
        master="local[2]", config={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    )
    reader = spark.readStream.format("oncelog").option("kafka.bootstrap.servers", servers)
    rows = reader.options(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="4").load()
    counted = (
        rows.withWatermark("timestamp", "0 seconds")
        .groupBy("key")
        .transformWithState(CountUntilTimer(), "key binary, value string", "update", "eventTime")
    )
    writer = oncelog.spark.write_stream(counted, bootstrap_servers=servers, transactional_id="timers", topic=target)
    writer = writer.outputMode("update").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
