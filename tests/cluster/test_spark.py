"""The exactly-once sink of Spark goes on while brokers of both kinds are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.clusters import Cluster, running_cluster, send
from tests.cluster.test_faults import CONTROLLER, JAVA, ONCELOG, kill_java, kill_oncelog
from tests.conformance.conftest import require
from tests.spark.conftest import spark, unzipped_home
from tests.spark.kafka import Kafka
from tests.spark.pipeline import Pipeline
from tests.waiting import wait_until

__all__ = ["spark", "unzipped_home"]
pytestmark = pytest.mark.spark
COUNT = 600


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("kafka")
    with running_cluster(tmp_path_factory.mktemp("spark-cluster")) as started:
        started.start_controller(node_id=CONTROLLER, roles="controller")
        started.start_java(JAVA)
        started.start_oncelog(ONCELOG)
        yield started


@pytest.mark.parametrize("fault", [kill_oncelog, kill_java])
def test_a_pipeline_goes_on_through_a_fault(
    cluster: Cluster, spark: Any, tmp_path: Path, fault: Callable[..., None]
) -> None:
    leader, follower = (JAVA, ONCELOG) if fault is kill_java else (ONCELOG, JAVA)
    source, target = f"{fault.__name__}-in", f"{fault.__name__}-out"
    for topic in (source, target):
        cluster.create_topic(topic, [leader, follower])
    values = [str(number) for number in range(COUNT)]
    send(cluster.producer(), source, values)
    pipeline = Pipeline(
        spark,
        Kafka(cluster.bootstrap_servers),
        source,
        target,
        str(tmp_path / "checkpoint"),
        fault.__name__,
        {"maxOffsetsPerTrigger": "20"},
    )
    query = pipeline.start()
    wait_until(lambda: (query.lastProgress or {}).get("batchId", -1) >= 3 or not query.isActive, timeout_s=180)
    fault(cluster, [source, target])
    assert query.awaitTermination(240), "the pipeline is stuck"
    found = [value.decode() for value in cluster.read(target, COUNT, group=f"of {target}")]
    assert sorted(found, key=int) == values
    cluster.wait_for_isr(target, JAVA, ONCELOG)
