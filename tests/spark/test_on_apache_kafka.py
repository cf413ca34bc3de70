"""The pipeline speaks only the Kafka protocol: the same on Apache Kafka, over the old transactions and the new."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.client.config import ClientConfig
from oncelog.client.transaction import TransactionClient
from oncelog.core import failpoints
from peers.kafka.kafka import KafkaServer, kafka_available
from tests.spark.kafka import Kafka
from tests.spark.pipeline import Pipeline
from tests.spark.test_sink_failures import break_a_task

pytestmark = [
    pytest.mark.spark,
    pytest.mark.conformance,
    # In CI the comparison must run: there it is not skipped, and fails to start.
    pytest.mark.skipif(kafka_available() is not None and os.environ.get("CI") != "true", reason=str(kafka_available())),
]


@pytest.fixture(scope="module", params=[0, 2], ids=["tv0", "tv2"])
def apache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    folder = tmp_path_factory.mktemp("apache-kafka")
    with KafkaServer(folder / "kafka", transaction_version=request.param) as server:
        yield Kafka(server.bootstrap_servers)


@pytest.fixture
def copying(spark: Any, apache: Kafka, name: Callable[[str], str], checkpoint: str) -> Pipeline:
    source, target = apache.create(name("in"), 2), apache.create(name("out"), 2)
    apache.send(source, [(b"key", b"same")] * 6)
    return Pipeline(spark, apache, source, target, checkpoint, name("id"), {"maxOffsetsPerTrigger": "3"})


def check(pipeline: Pipeline, count: int) -> None:
    assert pipeline.kafka.values(pipeline.target) == [b"same"] * count
    assert (
        sum(offset for offset in pipeline.kafka.group_offsets(pipeline.id, pipeline.source, 2) if offset > 0) == count
    )


def test_equal_batches_are_written_once_each(copying: Pipeline) -> None:
    copying.run()
    check(copying, 6)
    copying.kafka.send(copying.source, [(b"key", b"same")] * 3)
    copying.run()
    check(copying, 9)


def test_a_killed_task_leaves_nothing_behind(
    copying: Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    break_a_task(monkeypatch, tmp_path / "once", lambda: os.kill(os.getpid(), signal.SIGKILL))
    copying.run()
    assert (tmp_path / "once").exists()
    check(copying, 6)
    assert len(copying.kafka.read(copying.target, committed=False)) > 6


def test_a_replaced_driver_is_fenced_and_its_successor_goes_on(copying: Pipeline) -> None:
    def take_over() -> None:
        with TransactionClient(ClientConfig(bootstrap_servers=copying.kafka.servers)) as successor:
            successor.init(copying.id)

    failpoints.arm("spark.sink.before_commit", failpoints.on_nth_hit(2, take_over))
    try:
        with pytest.raises(Exception, match="another driver has taken over"):
            copying.run()
    finally:
        failpoints.disarm_all()
    check(copying, 3)
    copying.run()
    check(copying, 6)
