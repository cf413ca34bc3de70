"""A driver in a process of its own, so that it can die: lines of JSON into a table of a lake.

python -m tests.spark.lake_driver '{"kind": "delta", "folder": ..., "die_at": ..., "die_at_hit": ..., "stop_at": ...}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import oncelog.spark
from oncelog.core import failpoints
from tests.spark.conftest import QUIET
from tests.spark.driver import stop_here
from tests.spark.lakes import LAKES


def main() -> None:
    order = json.loads(sys.argv[1])
    if order.get("die_at"):
        die = failpoints.on_nth_hit(order["die_at_hit"], lambda: os.kill(os.getpid(), signal.SIGKILL))
        failpoints.arm(f"spark.lake.{order['die_at']}", die)
    if order.get("stop_at"):
        failpoints.arm(f"spark.lake.{order['stop_at']}", failpoints.on_nth_hit(2, stop_here))
    config = {**QUIET, "spark.driver.host": "127.0.0.1"}
    spark = oncelog.spark.session(master="local[2]", config=config)
    LAKES[order["kind"]](Path(order["folder"])).run(spark)
    spark.stop()


if __name__ == "__main__":
    main()
