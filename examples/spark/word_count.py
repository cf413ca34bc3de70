"""Counts words: a stateful query whose counts are written exactly once, as a changelog of one record per word.

    oncelog run examples/spark/word_count.py --from sentences --to counts

Reading the output as a table (`oncelog.spark.read_table`, or any compacted-topic reader) gives the current counts.
"""

from __future__ import annotations

import argparse
import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import oncelog.spark


def count_words(lines: DataFrame) -> DataFrame:
    words = lines.select(sf.explode(sf.split(sf.lower(sf.col("value").cast("string")), r"\W+")).alias("word"))
    counts = words.where("word != ''").groupBy("word").count()
    return counts.select(sf.col("word").alias("key"), sf.col("count").cast("string").alias("value"))


def start(spark: SparkSession, servers: str, source: str, target: str, checkpoint: str) -> StreamingQuery:
    lines = (
        spark.readStream.format("oncelog")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = oncelog.spark.write_stream(
        count_words(lines), bootstrap_servers=servers, transactional_id=f"word-count-{target}", topic=target
    )
    return writer.outputMode("update").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap-servers", default=os.environ.get("ONCELOG_BOOTSTRAP_SERVERS", "localhost:9092"))
    parser.add_argument("--from", dest="source", default="sentences")
    parser.add_argument("--to", dest="target", default="counts")
    parser.add_argument("--checkpoint", default="checkpoints/word-count")
    options = parser.parse_args()
    spark = oncelog.spark.session("word count")
    start(spark, options.bootstrap_servers, options.source, options.target, options.checkpoint).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
