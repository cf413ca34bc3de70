"""The Spark part of the soak: transfers from their topic into a table of PostgreSQL, exactly once.

python -m tests.connect.spark_leg SERVERS URL CHECKPOINT [--until-current]
"""

from __future__ import annotations

import argparse

from pyspark.sql import functions

import oncelog.spark

QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.connect.spark_leg", description=__doc__)
    parser.add_argument("servers")
    parser.add_argument("url")
    parser.add_argument("checkpoint")
    parser.add_argument("--until-current", action="store_true")
    options = parser.parse_args()
    spark = oncelog.spark.session(app_name="soak", master="local[2]", config=QUIET)
    reader = spark.readStream.format("oncelog").option("kafka.bootstrap.servers", options.servers)
    topic = reader.option("subscribe", "soak.transfers").option("startingOffsets", "earliest").load()
    row = functions.from_json(topic["value"].cast("string"), "id bigint, amount bigint")
    rows = topic.select(row.alias("row")).select("row.*")
    writer = oncelog.spark.write_stream_to_postgres(rows, url=options.url, table="spark_transfers", sink="soak-spark")
    trigger = {"availableNow": True} if options.until_current else {"processingTime": "1 second"}
    query = writer.option("checkpointLocation", options.checkpoint).trigger(**trigger).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
