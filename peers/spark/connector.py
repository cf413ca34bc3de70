"""Spark's own Kafka connector, fetched once with Maven beside the jars of Apache Kafka. It is not part of PySpark."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from peers.kafka.jars import FETCH_TRIES, cache_dir, fetched

ARTIFACTS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
FETCH_TIMEOUT_S = 300.0


def connector_jars() -> list[str]:
    """Paths of the jars; none when they are not there and cannot be fetched. Each test process asks at its start."""
    folder = cache_dir() / "spark-connector"
    wanted = {artifact: folder / "{1}-{2}.jar".format(*artifact.split(":")) for artifact in ARTIFACTS}
    tries = FETCH_TRIES if os.environ.get("CI") == "true" else 1
    try:
        fetched(folder, lambda: _fetch(wanted), tries=tries)
    except (RuntimeError, subprocess.SubprocessError):
        return []
    return [str(path) for path in wanted.values()]


def _fetch(wanted: dict[str, Path]) -> None:
    for artifact, path in wanted.items():
        if path.exists():
            continue
        if shutil.which("mvn") is None:
            raise RuntimeError("there is no `mvn` on PATH")
        command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={path.parent}"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        if run.returncode:
            path.unlink(missing_ok=True)
            raise RuntimeError(f"fetching {artifact} failed ({run.returncode}):\n{run.stdout}{run.stderr}")
