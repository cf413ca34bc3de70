"""The queries of the demo: parse, enrich from a table, route; then count revenue per window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncelog.spark.demo.orders import WINDOW_S
from oncelog.spark.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDER_SCHEMA = "id long, customer int, cents long, at long, broken string"
ENRICHED_SCHEMA = "id long, customer int, cents long, at long, region string"
GUARANTEES = ("exactly-once", "at-least-once", "at-most-once")


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

    def query_id(self, query: str) -> str:
        """Transactional id and group of a query."""
        return f"{self.prefix}-{query}"

    def partition_counts(self) -> dict[str, int]:
        outputs = {self.enriched(guarantee): 4 for guarantee in GUARANTEES}
        dead = {self.dead_letters(guarantee): 1 for guarantee in GUARANTEES}
        return {self.orders: 4, **outputs, **dead}

    def compacted_counts(self) -> dict[str, int]:
        return {self.customers: 1, self.revenue: 2}


def read_stream(spark: SparkSession, servers: str, topic: str, *, per_batch: int | None = None) -> DataFrame:
    reader = spark.readStream.format("oncelog").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    if per_batch is not None:
        reader = reader.option("maxOffsetsPerTrigger", per_batch)
    return reader.option("startingOffsets", "earliest").load()


def enrich(orders: DataFrame, customers: DataFrame, enriched_topic: str, dead_letter_topic: str) -> DataFrame:
    """Rows to write: good orders with the region of their customer, broken ones untouched to the dead letters."""
    from pyspark.sql import functions as sf

    corrupt = {"columnNameOfCorruptRecord": "broken"}
    order = sf.from_json(sf.col("value").cast("string"), ORDER_SCHEMA, corrupt).alias("order")
    who = sf.col("key").cast("string").cast("int").alias("who")
    regions = sf.broadcast(customers.select(who, sf.col("value").cast("string").alias("region")))
    joined = orders.select("key", "value", order).join(regions, sf.col("order.customer") == sf.col("who"), "left")
    is_broken = sf.col("order.broken").isNotNull() | sf.col("order.id").isNull()
    enriched = sf.to_json(sf.struct("order.id", "order.customer", "order.cents", "order.at", "region"))
    return joined.select(
        "key",
        sf.when(is_broken, sf.col("value")).otherwise(enriched.cast("binary")).alias("value"),
        sf.when(is_broken, dead_letter_topic).otherwise(enriched_topic).alias("topic"),
    )


def enriched_orders(spark: SparkSession, servers: str, topics: Topics, guarantee: str, *, per_batch: int) -> DataFrame:
    orders = read_stream(spark, servers, topics.orders, per_batch=per_batch)
    customers = read_table(spark, bootstrap_servers=servers, topic=topics.customers)
    return enrich(orders, customers, topics.enriched(guarantee), topics.dead_letters(guarantee))


def revenue(spark: SparkSession, servers: str, topics: Topics) -> DataFrame:
    """Orders and cents per window and region, from the exactly-once output: a changelog keyed by both."""
    from pyspark.sql import functions as sf

    rows = read_stream(spark, servers, topics.enriched("exactly-once"))
    order = sf.from_json(sf.col("value").cast("string"), ENRICHED_SCHEMA).alias("order")
    window = (sf.col("order.at") - sf.col("order.at") % WINDOW_S).alias("window")
    totals = (
        rows.select(order)
        .groupBy(window, sf.col("order.region").alias("region"))
        .agg(sf.count("*").alias("orders"), sf.sum("order.cents").alias("cents"))
    )
    return totals.select(
        sf.concat_ws("/", "window", "region").alias("key"),
        sf.to_json(sf.struct("window", "region", "orders", "cents")).alias("value"),
    )
