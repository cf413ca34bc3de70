"""The Spark program of the demo: parse, enrich from a table, route; then count revenue per window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import oncelog.spark
from oncelog.spark.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ORDER_SCHEMA = "id long, customer int, cents long, at long, broken string"


@dataclass(frozen=True, slots=True)
class Topics:
    """Names of one run's topics, so that several runs can share a broker."""

    prefix: str = "demo"

    @property
    def orders(self) -> str:
        return f"{self.prefix}-orders"

    @property
    def customers(self) -> str:
        return f"{self.prefix}-customers"

    @property
    def revenue(self) -> str:
        return f"{self.prefix}-revenue"

    def enriched(self, guarantee: str) -> str:
        return f"{self.prefix}-enriched-{guarantee}"

    def dead_letters(self, guarantee: str) -> str:
        return f"{self.prefix}-dead-letters-{guarantee}"


def read_orders(spark: SparkSession, servers: str, topics: Topics, *, per_batch: int) -> DataFrame:
    return (
        spark.readStream.format("oncelog")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topics.orders)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )


def enrich(orders: DataFrame, customers: DataFrame, enriched_topic: str, dead_letter_topic: str) -> DataFrame:
    """Rows to write: good orders with their region, broken ones untouched to the dead letters."""
    from pyspark.sql import functions as sf

    parsed = orders.select(
        "key",
        "value",
        sf.from_json(sf.col("value").cast("string"), ORDER_SCHEMA, {"columnNameOfCorruptRecord": "broken"}).alias(
            "order"
        ),
    )
    regions = sf.broadcast(
        customers.select(
            sf.col("key").cast("string").cast("int").alias("who"), sf.col("value").cast("string").alias("region")
        )
    )
    joined = parsed.join(regions, sf.col("order.customer") == sf.col("who"), "left")
    is_broken = sf.col("order.broken").isNotNull() | sf.col("order.id").isNull()
    enriched = sf.to_json(sf.struct("order.id", "order.customer", "order.cents", "order.at", "region")).cast("binary")
    return joined.select(
        "key",
        sf.when(is_broken, sf.col("value")).otherwise(enriched).alias("value"),
        sf.when(is_broken, dead_letter_topic).otherwise(enriched_topic).alias("topic"),
    )


def start_exactly_once(
    spark: SparkSession, servers: str, topics: Topics, checkpoint: str, *, per_batch: int, available_now: bool
) -> StreamingQuery:
    customers = read_table(spark, bootstrap_servers=servers, topic=topics.customers)
    enriched, dead = topics.enriched("exactly-once"), topics.dead_letters("exactly-once")
    rows = enrich(read_orders(spark, servers, topics, per_batch=per_batch), customers, enriched, dead)
    writer = oncelog.spark.write_stream(
        rows, bootstrap_servers=servers, transactional_id=f"{topics.prefix}-enrich", topic=enriched
    ).option("checkpointLocation", checkpoint)
    if available_now:
        writer = writer.trigger(availableNow=True)
    return writer.queryName("enrich").start()
