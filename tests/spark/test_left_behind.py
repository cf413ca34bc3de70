"""A process that is killed leaves nothing of Spark's behind: no master, no worker, no driver."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.unit.testing.test_janitor import runs
from tests.waiting import wait_until

SPARK_CLASS = """#!/bin/sh
echo Starting Spark master at spark://127.0.0.1:1
echo Successfully registered with master
sleep 600 &
wait
"""
"""As master and workers are for their owner, in no time: processes that say when they are ready, and start others."""
NAMES = ("master.Master", "worker.Worker", "sleep 600", "oncelog.spark.demo.driver")
PROGRAM = """
import sys, time
from pathlib import Path
from oncelog.spark import standalone_cluster
from oncelog.spark.demo.chaos import DriverProcess
from oncelog.spark.demo.driver import DriverOrder
folder = Path(sys.argv[1])
standalone_cluster.spark_home = lambda: folder
cluster = standalone_cluster.StandaloneCluster(folder, workers=1).start()
order = DriverOrder("127.0.0.1:1", cluster.master_url, "demo", str(folder), 1)
DriverProcess(order, folder / "driver.log").start()
print("up", flush=True)
time.sleep(600)
"""


def descendants(pid: int) -> dict[int, str]:
    """The processes that one has started, and what those have started, by their command lines."""
    listing = subprocess.run(["ps", "-wweo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()]
    own = {int(child): command for child, parent, command in rows if int(parent) == pid}
    return own | {child: command for each in own for child, command in descendants(each).items()}


def test_the_end_of_their_owner_ends_master_worker_and_driver(tmp_path: Path) -> None:
    script = tmp_path / "bin" / "spark-class"
    script.parent.mkdir()
    script.write_text(SPARK_CLASS)
    script.chmod(0o755)
    left: dict[int, str] = {}

    def all_run() -> bool:
        left.update(descendants(owner.pid))
        return all(any(name in command for command in left.values()) for name in NAMES)

    try:
        with subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE) as owner:
            try:
                assert owner.stdout is not None
                assert owner.stdout.readline() == b"up\n"
                wait_until(all_run, f"not all of {NAMES} have come to run")
            finally:
                owner.kill()
        wait_until(lambda: not any(map(runs, left)), f"something is left of {left}")
    finally:
        for pid in filter(runs, left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
