"""Test runs in several processes: each has its own brokers, and none is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.unit.testing.test_janitor import runs
from tests.waiting import wait_until

_TESTS = """
import os
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", range(8))
def test_one(number, oncelog_broker, oncelog_topic, fresh_oncelog_broker):
    with fresh_oncelog_broker.admin() as admin:
        assert admin.list_topics() == {}
        admin.create_topics(["orders"])
    with oncelog_broker.admin() as admin:
        admin.create_topics(["mine-" + oncelog_topic])
    worker = Path(os.environ["PYTEST_XDIST_WORKER"])
    with worker.open("a") as seen:
        print(oncelog_broker.pid, fresh_oncelog_broker.pid, file=seen)
    while len(list(Path.cwd().glob("gw*"))) < 2:  # until both have had a test
        time.sleep(0.02)
"""


def test_processes_of_a_run_share_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_parallel.py").write_text(_TESTS)
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, "--numprocesses", "2", "--timeout", "300", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )
    assert "8 passed" in done.stdout, done.stdout + done.stderr
    pids = [set((tmp_path / worker).read_text().split()) for worker in ("gw0", "gw1")]
    assert [len(each) for each in pids] == [2, 2]
    assert not pids[0] & pids[1]
    wait_until(lambda: not any(runs(int(pid)) for pid in pids[0] | pids[1]))
    wait_until(lambda: not list((tmp_path / "tmp").glob("oncelog-*")))
