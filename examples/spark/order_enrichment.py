"""Gives each order the name of its customer, from a compacted topic read as a table.

    oncelog run examples/spark/order_enrichment.py

Orders are JSON with a `customer`; customers are records whose key is the customer and whose value is the name. The
table is read anew for every micro-batch, so a changed name takes effect with the next one.
"""

from __future__ import annotations

import argparse
import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import oncelog.spark

ORDER = "id long, customer string, cents long"


def enrich(orders: DataFrame, customers: DataFrame) -> DataFrame:
    parsed = orders.select("key", sf.from_json(sf.col("value").cast("string"), ORDER).alias("order"))
    names = customers.select(sf.col("key").cast("string").alias("who"), sf.col("value").cast("string").alias("name"))
    joined = parsed.join(sf.broadcast(names), sf.col("order.customer") == sf.col("who"), "left")
    return joined.select("key", sf.to_json(sf.struct("order.*", "name")).alias("value"))


def start(spark: SparkSession, servers: str, topics: dict[str, str], checkpoint: str) -> StreamingQuery:
    orders = (
        spark.readStream.format("oncelog")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topics["orders"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .load()
    )
    customers = oncelog.spark.read_table(spark, bootstrap_servers=servers, topic=topics["customers"])
    target = topics["enriched"]
    writer = oncelog.spark.write_stream(
        enrich(orders, customers), bootstrap_servers=servers, transactional_id=f"enrich-{target}", topic=target
    )
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap-servers", default=os.environ.get("ONCELOG_BOOTSTRAP_SERVERS", "localhost:9092"))
    parser.add_argument("--checkpoint", default="checkpoints/order-enrichment")
    for name in ("orders", "customers", "enriched"):
        parser.add_argument(f"--{name}", default=name)
    options = parser.parse_args()
    topics = {name: getattr(options, name) for name in ("orders", "customers", "enriched")}
    spark = oncelog.spark.session("order enrichment")
    start(spark, options.bootstrap_servers, topics, options.checkpoint).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
