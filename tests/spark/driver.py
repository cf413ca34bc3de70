"""A driver in a process of its own, so that it can die: copies a topic, or counts its records by key, exactly once.

"counts" is what each record counts for.

python -m tests.spark.driver '{"master": ..., "servers": ..., ...}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oncelog.spark
from oncelog.core import failpoints
from oncelog.spark import small_batch, write_job
from tests.spark.broken_task import breaking_once, breaking_while_writing
from tests.spark.conftest import QUIET


def signal_executor_once(mark: str, number: int, breaking: Callable[..., Any]) -> None:
    """The first task to come to a certain point sends a signal to the JVM it runs in. With its death the shuffle files
    are gone that the others still need."""

    def send() -> None:
        with open(f"/proc/{os.getppid()}/stat") as stat:  # noqa: PTH123  # pickled by value: no imports
            executor = int(stat.read().rsplit(")", 1)[1].split()[1])
        os.kill(executor, number)

    write_job._writing = breaking(write_job._writing, mark, send)


def decommission_executor_once(mark: str) -> None:
    """The first task in the middle of its share has its executor decommissioned, and holds on until that is gone:
    it never comes to the end of its share. `mark` gets how long the executor went on with its task."""

    def decommission() -> None:
        with open(f"/proc/{os.getppid()}/stat") as stat:  # noqa: PTH123  # pickled by value: no imports
            executor = int(stat.read().rsplit(")", 1)[1].split()[1])
        os.kill(executor, signal.SIGPWR)
        began_s = time.monotonic()
        # It goes with its executor, and has no time for last words.
        while os.path.exists(f"/proc/{executor}") and time.monotonic() < began_s + 120:  # noqa: PTH110
            with open(mark, "a") as said:  # noqa: PTH123
                said.write(f"{time.monotonic() - began_s:.3f}\n")
            time.sleep(0.05)

    write_job._writing = breaking_while_writing(write_job._writing, mark, decommission)


def hold_here(mark: str) -> Callable[[], None]:
    """Alive, and in the middle of something: until the test says to go on."""

    def hold() -> None:
        Path(f"{mark}-held").touch()
        while not Path(f"{mark}-go-on").exists():
            time.sleep(0.05)

    return hold


def stop_here() -> None:
    """Sent to the process, the signal may be taken by another thread, and this one goes on for a moment: far enough to
    commit."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def main() -> None:
    order = json.loads(sys.argv[1])
    if order.get("die_at"):
        die = failpoints.on_nth_hit(order.get("die_at_hit", 2), lambda: os.kill(os.getpid(), signal.SIGKILL))
        failpoints.arm(f"spark.sink.{order['die_at']}", die)
    if order.get("stop_at"):
        stop = failpoints.on_nth_hit(2, stop_here)
        failpoints.arm(f"spark.sink.{order['stop_at']}", stop)
    if order.get("hold_at"):
        hold = failpoints.on_nth_hit(2, hold_here(order["hold_mark"]))
        failpoints.arm(f"spark.sink.{order['hold_at']}", hold)
    if order.get("kill_mark"):
        signal_executor_once(order["kill_mark"], signal.SIGKILL, breaking_once)
    if order.get("kill_while_writing_mark"):
        signal_executor_once(order["kill_while_writing_mark"], signal.SIGKILL, breaking_while_writing)
    if order.get("decommission_while_writing_mark"):
        decommission_executor_once(order["decommission_while_writing_mark"])
    # So few records would be written by one task; here they are to be shuffled between executors, as many are.
    small_batch.BATCH_OFFSETS = 0
    config = {
        **QUIET,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUIET["spark.driver.extraJavaOptions"],
        "spark.driver.host": "127.0.0.1",
        **order.get("config", {}),
    }
    spark = oncelog.spark.session(master=order["master"], config=config)
    reader = spark.readStream.format("oncelog").option("kafka.bootstrap.servers", order["servers"])
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "400", **order.get("options", {})}
    rows = reader.options(subscribe=order["source"], **options).load().select("key", "value")
    if order.get("counts"):
        ones = rows.selectExpr("key", f"{order['counts']}L as n")
        rows = ones.groupBy("key").sum("n").selectExpr("key", "cast(`sum(n)` as string) as value")
    query = (
        oncelog.spark.write_stream(
            rows,
            bootstrap_servers=order["servers"],
            transactional_id=order["id"],
            topic=order["target"],
            group_id=order.get("group"),
        )
        .outputMode("update")
        .option("checkpointLocation", order["checkpoint"])
        .trigger(**order.get("trigger", {"availableNow": True}))
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
