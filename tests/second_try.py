"""A second try, alone, for the few tests that failed in a whole run in CI: `python -m tests.second_try NOTE`.

Ten thousand tests with real processes, Java and a browser share two cores, and one that fails once is more often a
fault of the test than of the product. It is named in the open, to be mended. There is no second try for more than
three tests, for a run that broke off, nor for the tests which show that nothing is lost: one failure there is a fault
until its cause is known.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTE = "ONCELOG_FAILED_TESTS"
"""Environment variable: the file that a run writes its failed tests into."""
MOST = 3
NEVER_AGAIN = (
    "tests/cluster/test_clients.py",
    "tests/cluster/test_controllers.py",
    "tests/cluster/test_demo.py",
    "tests/cluster/test_faults.py",
    "tests/cluster/test_own_controller.py",
    "tests/cluster/test_spark.py",
    "tests/cluster_simulation/",
    "tests/conformance/test_exactly_once.py",
    "tests/conformance/test_idempotence.py",
    "tests/connect/test_accidents.py",
    "tests/connect/test_dual_write.py",
    "tests/connect/test_inbox.py",
    "tests/connect/test_postgres_source.py",
    "tests/connect/test_round_trip.py",
    "tests/connect/test_sinks.py",
    "tests/connect/test_time.py",
    "tests/controller_simulation/",
    "tests/crash/",
    "tests/metadata_log_simulation/",
    "tests/property/",
    "tests/simulation/",
    "tests/spark/test_cluster.py",
    "tests/spark/test_drivers.py",
    "tests/spark/test_lake_tables.py",
    "tests/spark/test_lakes.py",
    "tests/spark/test_postgres_snapshot.py",
    "tests/spark/test_postgres_table.py",
    "tests/spark/test_shared_group.py",
    "tests/spark/test_sink_failures.py",
    "tests/zookeeper/test_bad_connections.py",
    "tests/zookeeper/test_ensemble.py",
    "tests/zookeeper/test_fail_over.py",
)
"""They let nodes die, stand still and lose answers, and count what is there afterwards."""


class FailureNote:
    """Notes what failed, and how the run ended, in the process that hears of every test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._path.write_text(json.dumps({"exit": int(exitstatus), "failed": sorted(self._failed)}))


def take_notes(config: pytest.Config) -> None:
    if (path := os.environ.get(NOTE)) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureNote(Path(path)))


def refusal(exit_code: int, failed: list[str]) -> str:
    """Why there is no second try; empty if there is one."""
    if exit_code != pytest.ExitCode.TESTS_FAILED or not failed:
        return "the run broke off"
    if len(failed) > MOST:
        return f"{len(failed)} tests failed"
    return next((f"{name} failed, which has no second try" for name in failed if name.startswith(NEVER_AGAIN)), "")


def main(note: Path) -> int:
    noted: dict[str, Any] = json.loads(note.read_text() or "{}")
    names: list[str] = noted.get("failed", [])
    if why := refusal(noted.get("exit", -1), names):
        sys.exit(f"no second try: {why}")
    sys.stdout.write(f"second try, alone: {', '.join(names)}\n")
    sys.stdout.flush()
    environment = {key: value for key, value in os.environ.items() if key != NOTE}
    code = subprocess.run([sys.executable, "-m", "pytest", *names], env=environment, check=False).returncode
    if code == 0:
        sys.stdout.write(f"FAILED ONCE, THEN PASSED ALONE, to be mended: {', '.join(names)}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
