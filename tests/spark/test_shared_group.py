"""Two queries that commit offsets for one group: nothing is written twice, and one of them is told."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncelog.core import failpoints
from tests.spark.brokers import APACHE, SHARED, on_brokers
from tests.spark.pipeline import Pipeline
from tests.spark.test_sink_failures import crash_in_the_sink, lose_the_answer_to_a_commit

pytestmark = pytest.mark.spark

HUNDRED = [b"%03d" % i for i in range(100)]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm_all()


@pytest.fixture
def second(pipeline: Pipeline, name: Callable[[str], str], tmp_path: Path) -> Pipeline:
    """Reads what the first one reads, and commits for its group."""
    return dataclasses.replace(
        pipeline,
        target=pipeline.kafka.create(name("second"), 2),
        checkpoint=str(tmp_path / "second"),
        id=name("second"),
        options={},
        settings={"group_id": pipeline.id},
    )


def test_a_slow_batch_does_not_write_over_the_note_of_another_query(
    pipeline: Pipeline, second: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.kafka.send(pipeline.source, HUNDRED, partition=0)
    for one in (pipeline, second):
        one.options["maxOffsetsPerTrigger"] = "50"

    def meanwhile() -> None:
        """The first one comes to 100 and dies before Spark has noted its second batch."""
        crash_in_the_sink(monkeypatch, "after_commit", 2)
        with pytest.raises(Exception, match="SimulatedCrash"):
            pipeline.run()

    failpoints.arm("spark.sink.before_offsets", failpoints.on_nth_hit(1, meanwhile))
    with pytest.raises(Exception, match=f"is new to group {pipeline.id}, which another query has written for"):
        second.run()
    failpoints.disarm_all()
    pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED
    assert pipeline.kafka.values(second.target) == []


@on_brokers(SHARED, APACHE[-1])
@pytest.mark.parametrize("fate", ["dies", "does not learn of its commit"])
def test_a_first_batch_that_another_query_commits_over_is_not_written_again(
    pipeline: Pipeline, second: Pipeline, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked at the group before either has committed, and the second puts it back to where the batch of the
    first began."""
    looked, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        looked.set()
        assert go_on.wait(60)

    failpoints.arm("spark.sink.after_last_look", failpoints.on_nth_hit(1, hold))
    pipeline.kafka.send(pipeline.source, HUNDRED[:50], partition=0)
    other = second.start()
    assert looked.wait(60)
    pipeline.kafka.send(pipeline.source, HUNDRED[50:], partition=0)
    pipeline.options["startingOffsets"] = json.dumps({pipeline.source: {"0": 50, "1": 0}})

    def commit_over() -> None:
        go_on.set()
        other.awaitTermination()

    refused = f"not as it was then: query {other.id} .transactional id {second.id}"
    if fate == "dies":
        crash_in_the_sink(monkeypatch, "after_commit", 1)
        with pytest.raises(Exception, match="SimulatedCrash"):
            pipeline.run()
        commit_over()
    else:
        lose_the_answer_to_a_commit(monkeypatch, meanwhile=commit_over)
    with pytest.raises(Exception, match=refused):
        pipeline.run()
    assert pipeline.kafka.values(second.target) == HUNDRED[:50]
    assert pipeline.kafka.values(pipeline.target) == HUNDRED[50:]


def test_a_query_whose_position_another_has_written_over_stops_with_both_names(
    pipeline: Pipeline, second: Pipeline
) -> None:
    pipeline.kafka.send(pipeline.source, HUNDRED, partition=0)
    pipeline.run()
    # It continues where the group stands, finds nothing to do there, and makes the position its own.
    second.options |= {"startingOffsets": "committed", "kafka.group.id": pipeline.id}
    second.run()
    pipeline.kafka.send(pipeline.source, [b"more"], partition=0)
    with pytest.raises(Exception, match=f"two queries use group {pipeline.id}.*transactional id {second.id}"):
        pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED
    second.run()
    assert pipeline.kafka.values(second.target) == [b"more"]
