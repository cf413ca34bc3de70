"""A compacted topic read as a table: the latest value of each key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_table(
    spark: SparkSession, *, bootstrap_servers: str, topic: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    """Columns `key`, `value`, `partition`, `offset`, `timestamp`: of each key its last record, tombstones left out.

    It does not matter whether the broker has compacted the topic already. Records without a key are left out. A key
    must stay in its partition, as it does unless partitions are added. Joined with a stream that a sink of Oncelog
    writes, the table is read anew for every micro-batch; `cache()` it when it does not change.
    """
    from pyspark.sql import functions as sf

    reader = (
        spark.read.format("oncelog").option("kafka.bootstrap.servers", bootstrap_servers).option("subscribe", topic)
    )
    rows = reader.options(**(options or {})).load().where("key is not null")
    last = sf.max_by(sf.struct("value", "partition", "offset", "timestamp"), "offset").alias("last")
    return rows.groupBy("key").agg(last).select("key", "last.*").where("value is not null")
