"""The shortest proof: one query over all orders, and every order written once."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

import oncelog.spark
from oncelog.client.config import ClientConfig
from oncelog.spark.demo.orders import truth
from oncelog.spark.demo.pipeline import Topics, start_exactly_once
from oncelog.spark.demo.proof import Tally, input_is_committed, tally_broken, tally_orders
from oncelog.spark.demo.topics import write_customers, write_orders
from oncelog.spark.worker_client import worker_client


def run_simple(servers: str, folder: Path, records: int, master: str) -> bool:
    console = Console()
    config = ClientConfig(bootstrap_servers=servers)
    topics = Topics()
    enriched, dead = topics.enriched("exactly-once"), topics.dead_letters("exactly-once")
    worker_client(config).create_topics({topics.orders: 4, enriched: 4, dead: 1})
    worker_client(config).create_topics({topics.customers: 1}, {"cleanup.policy": "compact"})
    write_customers(config, topics.customers)
    for written in write_orders(config, topics.orders, records):
        console.print(f"orders written: {written}")
    spark = oncelog.spark.session(
        master=master, config={"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        query = start_exactly_once(
            spark, servers, topics, str(folder / "checkpoint"), per_batch=max(records // 5, 1), available_now=True
        )
        query.awaitTermination()
    finally:
        spark.stop()
    known = truth(records)
    tallies = {"orders": tally_orders(config, enriched, known), "dead letters": tally_broken(config, dead, known)}
    committed = input_is_committed(config, f"{topics.prefix}-enrich", topics.orders)
    _print(console, tallies, committed)
    return committed and all(tally.exact for tally in tallies.values())


def _print(console: Console, tallies: dict[str, Tally], committed: bool) -> None:
    table = Table(title="What came out")
    for name in ("", "expected", "once", "lost", "doubled", "foreign"):
        table.add_column(name, justify="right")
    for name, tally in tallies.items():
        table.add_row(name, *(str(n) for n in (tally.expected, tally.once, tally.lost, tally.doubled, tally.foreign)))
    console.print(table)
    console.print(f"input offsets committed up to the end: {'yes' if committed else 'NO'}")
