"""A pipeline as the tests run it: topic to topic, through the exactly-once sink."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import oncelog.spark
from tests.spark.kafka import Kafka


@dataclass
class Pipeline:
    spark: Any
    kafka: Kafka
    source: str
    target: str
    checkpoint: str
    """Empty for none."""
    id: str
    options: dict[str, str] = field(default_factory=dict)
    """Of the source."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the sink."""

    def read(self) -> Any:
        reader = self.spark.readStream.format("oncelog").option("kafka.bootstrap.servers", self.kafka.servers)
        options = {"subscribe": self.source, "startingOffsets": "earliest", **self.options}
        return reader.options(**options).load()

    def writer(self, frame: Any) -> Any:
        settings = {"topic": self.target, **self.settings}
        writer = oncelog.spark.write_stream(
            frame, bootstrap_servers=self.kafka.servers, transactional_id=self.id, **settings
        )
        return writer.option("checkpointLocation", self.checkpoint) if self.checkpoint else writer

    def start(self, frame: Any | None = None, **trigger: Any) -> Any:
        rows = self.read().select("key", "value") if frame is None else frame
        return self.writer(rows).trigger(**(trigger or {"availableNow": True})).start()

    def run(self, frame: Any | None = None) -> Any:
        """To the end of what is there. Returns the finished query; raises what it failed with."""
        query = self.start(frame)
        query.awaitTermination()
        return query


def forget_the_beginning(checkpoint: str, batch: int) -> None:
    """What earlier versions wrote for a batch: where it ends, and no more."""
    path = Path(checkpoint, "offsets", str(batch))
    version, metadata, *sources = path.read_text().split("\n")
    plain = [json.dumps({name: at for name, at in json.loads(text).items() if name != "@oncelog"}) for text in sources]
    path.write_text("\n".join([version, metadata, *plain]))
