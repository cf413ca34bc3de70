"""Exactly-once pipelines on Spark: topics in, topics out, one transaction per micro-batch.

    spark = oncelog.spark.session()
    reader = spark.readStream.format("oncelog").option("kafka.bootstrap.servers", servers)
    orders = reader.option("subscribe", "orders").load().select("key", "value")
    writer = oncelog.spark.write_stream(orders, bootstrap_servers=servers, topic="out", transactional_id="copy-orders")
    writer.option("checkpointLocation", folder).start()

Names are imported when they are used, so that `oncelog.spark.java` can be asked for a Java where pyspark is missing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncelog.spark.sink import DriverFenced, write_stream
    from oncelog.spark.spark_session import explain, register, session

_HOMES = {
    "DriverFenced": "oncelog.spark.sink",
    "explain": "oncelog.spark.spark_session",
    "register": "oncelog.spark.spark_session",
    "session": "oncelog.spark.spark_session",
    "write_stream": "oncelog.spark.sink",
}

__all__ = ["DriverFenced", "explain", "register", "session", "write_stream"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
