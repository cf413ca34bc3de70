"""One Spark session and one broker for all Spark tests; topics are the test's own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import oncelog.spark
from oncelog.testing import BrokerProcess
from peers.spark.connector import connector_jars
from tests.spark.home import make_unzipped_home
from tests.spark.kafka import Kafka
from tests.spark.pipeline import Pipeline

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
}


@pytest.fixture(scope="session")
def unzipped_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_unzipped_home(tmp_path_factory.mktemp("spark-home"))


@pytest.fixture(scope="package")
def spark(unzipped_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two cores, with task retries as a cluster has them. Spark's JVM ends with the tests of this folder."""
    folder = tmp_path_factory.mktemp("spark")
    error_file = folder / "jvm-error.log"
    config = {
        **QUIET,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"{QUIET['spark.driver.extraJavaOptions']} -XX:ErrorFile={error_file}",
    }
    if jars := connector_jars():
        config["spark.jars"] = ",".join(jars)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_HOME", str(unzipped_home))
        session = oncelog.spark.session(app_name="oncelog tests", master="local[2,4]", config=config)
    yield session
    end_jvm(session, error_file)


def end_jvm(session: Any, error_file: Path) -> None:
    """PySpark itself keeps the JVM of a stopped session to the end of the Python process."""
    from pyspark import SparkContext

    gateway = session.sparkContext._gateway
    code = gateway.proc.poll()
    if code is not None:
        report = error_file.read_text()[:2000] if error_file.exists() else "It left no report of a crash."
        SparkContext._gateway = SparkContext._jvm = None
        pytest.fail(f"Spark's JVM ended by itself, with code {code} (a signal, if negative). {report}")
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def kafka(oncelog_broker: BrokerProcess) -> Kafka:
    return Kafka(oncelog_broker.bootstrap_servers)


@pytest.fixture
def name() -> Callable[[str], str]:
    """Names nobody else uses: topics, groups and transactional ids live as long as the broker."""
    suffix = uuid.uuid4().hex[:8]
    return lambda what: f"{what}-{suffix}"


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def pipeline(spark: Any, kafka: Kafka, name: Callable[[str], str], checkpoint: str) -> Pipeline:
    """From a topic of two partitions to another."""
    source, target = kafka.create(name("in"), 2), kafka.create(name("out"), 2)
    return Pipeline(spark, kafka, source, target, checkpoint, name("pipeline"))
