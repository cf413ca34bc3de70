"""The same pipeline on a real standalone cluster: a master, two workers and a driver, each a process that can die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncelog.child_process import ChildProcess
from oncelog.spark.standalone_cluster import StandaloneCluster
from tests.spark.home import make_unzipped_home
from tests.spark.kafka import Kafka

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]


TOO_SLOW_FOR_SPARK = "Timed out while waiting for the Python worker to connect back"
"""Spark waits ten seconds for the process of a source, whatever else the machine has to do. No batch has begun then."""


def start_driver(log: Path, *, module: str = "tests.spark.driver", **order: Any) -> subprocess.Popen[bytes]:
    """In the background. What it says goes to a file."""
    with log.open("wb") as written:
        return subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(order)],
            cwd=ROOT,
            env=_environment(log.parent / "spark-home"),
            stdout=written,
            stderr=written,
        )


def run_driver(**order: Any) -> int:
    """Returns the exit code; a driver that killed itself has -9."""
    for _ in range(3):
        with tempfile.TemporaryDirectory() as home:
            done = subprocess.run(
                [sys.executable, "-X", "faulthandler", "-m", "tests.spark.driver", json.dumps(order)],
                cwd=ROOT,
                env=_environment(Path(home)),
                capture_output=True,
                text=True,
                timeout=1800,
                check=False,
            )
        if TOO_SLOW_FOR_SPARK not in done.stderr:
            break
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-4000:]
    return done.returncode


def test_executors_are_found_whatever_the_width_of_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ps cuts its lines where COLUMNS is set, and the name of an executor's class stands behind a long class path."""
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["-cp", "x" * 200, "org.apache.spark.executor.CoarseGrainedExecutorBackend"]
    executor = [sys.executable, "-c", "print('up', flush=True); input()", *arguments]
    program = f"import subprocess; subprocess.run({executor!r})"
    worker = ChildProcess[bytes]([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdin is not None and worker.stdout is not None
    with worker.stdin as to_executor, worker.stdout as said:
        assert said.readline() == b"up\n"
        cluster = StandaloneCluster(tmp_path)
        cluster._processes = [ChildProcess[bytes](["true"]), worker]
        found = cluster.executor_pids()
        to_executor.write(b"\n")
    assert [process.end_within(60) for process in cluster._processes] == [0, 0]
    assert len(found) == 1


def _environment(home: Path) -> dict[str, str]:
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    return {**os.environ, "PYTHONPATH": path, "SPARK_HOME": str(make_unzipped_home(home))}


@pytest.mark.timeout(3600)
def test_a_killed_driver_and_a_killed_executor_cost_nothing(
    kafka: Kafka, name: Callable[[str], str], checkpoint: str, tmp_path: Path
) -> None:
    source, target = kafka.create(name("in"), 2), kafka.create(name("out"), 2)
    records = [b"%04d" % i for i in range(1200)]
    kafka.send(source, [(value, value) for value in records])
    mark = tmp_path / "executor-killed"
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        order = {
            "master": cluster.master_url,
            "servers": kafka.servers,
            "source": source,
            "target": target,
            "id": name("id"),
            "checkpoint": checkpoint,
        }
        assert run_driver(**order, die_at="before_commit") == -signal.SIGKILL
        assert 0 < len(kafka.values(target)) < len(kafka.read(target, committed=False))
        assert run_driver(**order, kill_mark=str(mark)) == 0
    assert mark.exists()
    assert kafka.values(target) == records
    ends = [sum(1 for s in kafka.read(source) if s.partition == p) for p in range(2)]
    assert kafka.group_offsets(str(order["id"]), source, 2) == ends


DECOMMISSIONED_S = 4
"""How long an executor may go on with its tasks after it was told to go. By default it may for ever."""
DECOMMISSIONED = {
    "spark.decommission.enabled": "true",
    "spark.executor.decommission.forceKillTimeout": f"{DECOMMISSIONED_S}s",
}


@pytest.mark.timeout(3600)
def test_executors_killed_and_decommissioned_while_they_write_cost_nothing(
    kafka: Kafka, name: Callable[[str], str], checkpoint: str, tmp_path: Path
) -> None:
    """The task has an acknowledgement for a part of its share, and never comes to its end: what it has written is in
    the log, and aborted."""
    source, target = kafka.create(name("in"), 2), kafka.create(name("out"), 2)
    records: list[bytes] = []
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        order = {
            "master": cluster.master_url,
            "servers": kafka.servers,
            "source": source,
            "target": target,
            "id": name("id"),
            "checkpoint": checkpoint,
            # Each row is a record batch there, so that a writing task gets more than one Arrow batch.
            "config": {"spark.sql.execution.arrow.maxRecordsPerBatch": "1", **DECOMMISSIONED},
            "options": {"maxOffsetsPerTrigger": "20"},
        }
        for deed in ("kill", "decommission"):
            more = [b"%s-%04d" % (deed.encode(), i) for i in range(60)]
            kafka.send(source, [(value, value) for value in more])
            records += more
            mark = tmp_path / deed
            assert run_driver(**order, **{f"{deed}_while_writing_mark": str(mark)}) == 0
            assert mark.exists()
            assert kafka.values(target) == sorted(records)
            partition, offset, *_ = mark.read_text().split()
            assert (int(partition), int(offset)) in kafka.invisible(target)
    # It was told to go, and not killed at once: it went on with its task until it was made to. What it said last may be
    # a while before its end, on a busy machine.
    assert float(mark.read_text().split()[-1]) >= DECOMMISSIONED_S / 4
