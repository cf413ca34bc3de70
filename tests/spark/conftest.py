"""One Spark session and one broker for all Spark tests; topics are the test's own."""

from __future__ import annotations

import contextlib
import functools
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import oncelog.spark
from oncelog.testing import BrokerProcess, broker
from peers.kafka.kafka import KafkaServer, kafka_available
from peers.spark.connector import connector_jars
from tests.spark.brokers import SHARED, BrokerChoice
from tests.spark.home import make_unzipped_home
from tests.spark.kafka import PATIENCE_S, Kafka
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
    events = folder / "events"
    events.mkdir()
    config = {
        **QUIET,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
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
    gateway.proc.wait(PATIENCE_S)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="package")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], str]]:
    """Where Apache Kafka runs with a transaction.version: started by the first test that asks, and kept."""
    with contextlib.ExitStack() as running:

        @functools.cache
        def servers(version: int) -> str:
            folder = tmp_path_factory.mktemp("apache-kafka") / "kafka"
            return running.enter_context(KafkaServer(folder, transaction_version=version)).bootstrap_servers

        yield servers


@pytest.fixture
def kafka(request: pytest.FixtureRequest, oncelog_broker: BrokerProcess) -> Iterator[Kafka]:
    """The broker that all tests share, unless a test chooses others (`tests.spark.brokers`)."""
    choice: BrokerChoice = getattr(request, "param", SHARED)
    if choice.is_apache:
        if (reason := kafka_available()) is not None and os.environ.get("CI") != "true":
            pytest.skip(reason)
        yield Kafka(request.getfixturevalue("apache_kafka")(choice.transaction_version))
    elif choice.transaction_version is not None:
        with broker({"transaction.version": choice.transaction_version}) as process:
            yield Kafka(process.bootstrap_servers)
    else:
        yield Kafka(oncelog_broker.bootstrap_servers)


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
