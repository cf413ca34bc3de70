"""The same pipeline on a real standalone cluster: a master, two workers and a driver, each a process that can die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncelog.spark.cluster import StandaloneCluster
from tests.spark.kafka import Kafka

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]


def run_driver(**order: Any) -> int:
    """Returns the exit code; a driver that killed itself has -9."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.driver", json.dumps(order)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-4000:]
    return done.returncode


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
