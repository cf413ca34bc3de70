"""Exactly-once pipelines on Spark: topics in, topics out, one transaction per micro-batch.

    spark = oncelog.spark.session()
    reader = spark.readStream.format("oncelog").option("kafka.bootstrap.servers", servers)
    orders = reader.option("subscribe", "orders").load().select("key", "value")
    writer = oncelog.spark.write_stream(orders, bootstrap_servers=servers, topic="out", transactional_id="copy-orders")
    writer.option("checkpointLocation", folder).start()

Names are imported when they are used, so that `oncelog.spark.java` can be asked for a Java where pyspark is missing.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncelog.spark.batch_report import last_progress, on_progress
    from oncelog.spark.batch_write import write_batch
    from oncelog.spark.delta_table import write_stream_to_delta
    from oncelog.spark.iceberg_table import write_stream_to_iceberg
    from oncelog.spark.java import JavaMissing
    from oncelog.spark.postgres_snapshot import snapshot_postgres
    from oncelog.spark.postgres_table import write_stream_to_postgres
    from oncelog.spark.resume import CannotResume
    from oncelog.spark.routing import RowError
    from oncelog.spark.schema_columns import from_registry, to_registry
    from oncelog.spark.sink import write_stream
    from oncelog.spark.source_options import OptionError
    from oncelog.spark.spark_session import UnsafeSetting, explain, register, session
    from oncelog.spark.tables import read_table
    from oncelog.spark.topic_plan import DataLost
    from oncelog.spark.transactor import DriverFenced

__all__ = [
    "CannotResume",
    "DataLost",
    "DriverFenced",
    "JavaMissing",
    "OptionError",
    "RowError",
    "UnsafeSetting",
    "explain",
    "from_registry",
    "last_progress",
    "on_progress",
    "read_table",
    "register",
    "session",
    "snapshot_postgres",
    "to_registry",
    "write_batch",
    "write_stream",
    "write_stream_to_delta",
    "write_stream_to_iceberg",
    "write_stream_to_postgres",
]


_MODULES = {
    "batch_report": ("last_progress", "on_progress"),
    "batch_write": ("write_batch",),
    "delta_table": ("write_stream_to_delta",),
    "iceberg_table": ("write_stream_to_iceberg",),
    "java": ("JavaMissing",),
    "postgres_snapshot": ("snapshot_postgres",),
    "postgres_table": ("write_stream_to_postgres",),
    "resume": ("CannotResume",),
    "routing": ("RowError",),
    "schema_columns": ("from_registry", "to_registry"),
    "sink": ("write_stream",),
    "source_options": ("OptionError",),
    "spark_session": ("UnsafeSetting", "explain", "register", "session"),
    "tables": ("read_table",),
    "topic_plan": ("DataLost",),
    "transactor": ("DriverFenced",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            if module != "java" and importlib.util.find_spec("pyspark") is None:
                raise ModuleNotFoundError(f"{name} needs Spark: pip install 'oncelog[spark]'", name="pyspark")
            return getattr(importlib.import_module(f"oncelog.spark.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
