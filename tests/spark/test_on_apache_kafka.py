"""The pipeline speaks only the Kafka protocol: the same on Apache Kafka, over the old transactions and the new.

Most tests here are those of the other modules, called once more with another broker behind the fixture `kafka`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from peers.kafka.kafka import KafkaServer, kafka_available
from tests.spark import test_first_offsets, test_sink, test_sink_failures, test_state
from tests.spark.kafka import Kafka
from tests.spark.pipeline import Pipeline
from tests.spark.test_sink_failures import disarmed, loaded  # noqa: F401  # fixtures
from tests.spark.test_state import counted  # noqa: F401  # a fixture

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
def kafka(apache: Kafka) -> Kafka:
    return apache


def test_equal_batches_are_written_once_each(
    spark: Any, kafka: Kafka, name: Callable[[str], str], checkpoint: str
) -> None:
    source, target = kafka.create(name("in"), 2), kafka.create(name("out"), 2)
    copying = Pipeline(spark, kafka, source, target, checkpoint, name("id"), {"maxOffsetsPerTrigger": "3"})
    for count in (6, 9):
        kafka.send(source, [(b"key", b"same")] * (count - len(kafka.read(target))))
        copying.run()
        assert kafka.values(target) == [b"same"] * count
        assert sum(offset for offset in kafka.group_offsets(copying.id, source, 2) if offset > 0) == count


def test_output_and_input_offsets_are_committed_together(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    test_sink.test_output_and_input_offsets_are_committed_together(pipeline, monkeypatch, small=0)


def test_rows_choose_topic_partition_and_headers(pipeline: Pipeline, name: Callable[[str], str]) -> None:
    test_sink.test_rows_choose_topic_partition_and_headers(pipeline, name)


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_a_driver_that_dies_is_followed_by_one_that_goes_on(
    loaded: Pipeline,  # noqa: F811
    point: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test_sink_failures.test_a_driver_that_dies_is_followed_by_one_that_goes_on(loaded, point, monkeypatch)


def test_a_driver_that_was_replaced_stops_and_says_so(loaded: Pipeline) -> None:  # noqa: F811
    test_sink_failures.test_a_driver_that_was_replaced_stops_and_says_so(loaded, "before_write")


def test_a_commit_whose_answer_is_lost_is_not_repeated(
    loaded: Pipeline,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test_sink_failures.test_a_commit_whose_answer_is_lost_is_not_repeated(loaded, monkeypatch, version="2")


def test_a_killed_python_worker_leaves_nothing_behind(
    loaded: Pipeline,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    test_sink_failures.test_a_killed_python_worker_leaves_nothing_behind(loaded, monkeypatch, tmp_path)


def test_state_lost_with_its_checkpoint_is_rebuilt(counted: Pipeline, tmp_path: Path) -> None:  # noqa: F811
    test_state.test_state_lost_with_its_checkpoint_is_rebuilt_from_the_changelog(counted, tmp_path)


def test_a_topic_that_was_created_again_is_noticed_by_its_id(pipeline: Pipeline) -> None:
    test_first_offsets.test_a_topic_that_was_created_again_is_written_from_its_beginning_where_data_may_be_lost(
        pipeline
    )
