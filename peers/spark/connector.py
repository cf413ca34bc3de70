"""Spark's own Kafka connector, fetched once with Maven beside the jars of Apache Kafka. It is not part of PySpark."""

from __future__ import annotations

import shutil
import subprocess

from peers.kafka.jars import cache_dir

ARTIFACTS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
FETCH_TIMEOUT_S = 120.0


def connector_jars() -> list[str]:
    """Paths of the jars; none when they are not there and cannot be fetched."""
    folder = cache_dir() / "spark-connector"
    wanted = [folder / "{1}-{2}.jar".format(*artifact.split(":")) for artifact in ARTIFACTS]
    for artifact, path in zip(ARTIFACTS, wanted, strict=True):
        if not path.exists() and not _fetch(artifact, str(folder)):
            return []
    return [str(path) for path in wanted]


def _fetch(artifact: str, folder: str) -> bool:
    if shutil.which("mvn") is None:
        return False
    command = ["mvn", "-q", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
    try:
        return subprocess.run(command, capture_output=True, timeout=FETCH_TIMEOUT_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
