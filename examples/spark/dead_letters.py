"""Routes what can be read to one topic and what cannot to another, in the same transaction.

    oncelog run examples/spark/dead_letters.py

Readings are JSON like `{"sensor": "a", "celsius": 21.5}`. A record that is not goes to the dead letters as it came,
with the reason in a header. Rows that no topic can take at all (too large, say) follow through `dead_letter_topic`.
"""

from __future__ import annotations

import argparse
import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import oncelog.spark

READING = "sensor string, celsius double, broken string"


def route(records: DataFrame, good: str, dead: str) -> DataFrame:
    text = sf.col("value").cast("string")
    parsed = sf.from_json(text, READING, {"columnNameOfCorruptRecord": "broken"}).alias("reading")
    reason = (
        sf.when(sf.col("reading.broken").isNotNull() | sf.col("reading").isNull(), "not JSON of a reading")
        .when(sf.col("reading.celsius").isNull(), "no temperature")
        .when(sf.col("reading.celsius") < -273.15, "colder than cold")
    )
    rows = records.select("key", "value", parsed).withColumn("reason", reason)
    header = sf.struct(sf.lit("reason").alias("key"), sf.col("reason").cast("binary").alias("value"))
    return rows.select(
        "key",
        "value",
        sf.when(sf.col("reason").isNull(), good).otherwise(dead).alias("topic"),
        sf.when(sf.col("reason").isNotNull(), sf.array(header)).alias("headers"),
    )


def start(spark: SparkSession, servers: str, topics: dict[str, str], checkpoint: str) -> StreamingQuery:
    records = (
        spark.readStream.format("oncelog")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topics["readings"])
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = oncelog.spark.write_stream(
        route(records, topics["good"], topics["dead"]),
        bootstrap_servers=servers,
        transactional_id=f"route-{topics['good']}",
        dead_letter_topic=topics["dead"],
    )
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap-servers", default=os.environ.get("ONCELOG_BOOTSTRAP_SERVERS", "localhost:9092"))
    parser.add_argument("--checkpoint", default="checkpoints/dead-letters")
    for name in ("readings", "good", "dead"):
        parser.add_argument(f"--{name}", default=name)
    options = parser.parse_args()
    topics = {name: getattr(options, name) for name in ("readings", "good", "dead")}
    spark = oncelog.spark.session("dead letters")
    start(spark, options.bootstrap_servers, topics, options.checkpoint).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
