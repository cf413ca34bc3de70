"""Two queries that commit offsets for one group: nothing is written twice, and one of them is told."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import window

from oncelog.client import Admin
from oncelog.core import failpoints
from oncelog.security.acl import Acl, Operation, Pattern, Permission, Resource
from oncelog.testing import broker
from tests.spark.brokers import APACHE, SHARED, on_brokers
from tests.spark.kafka import PATIENCE_S, Kafka
from tests.spark.pipeline import Pipeline
from tests.spark.test_sink_failures import crash_in_the_sink, lose_a_commit, lose_the_answer_to_a_commit

pytestmark = pytest.mark.spark

HUNDRED = [b"%03d" % i for i in range(100)]
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm_all()


def hold_at(point: str) -> tuple[threading.Event, threading.Event]:
    """The next query that comes to this point is held there. The first event says so, the second lets it go on."""
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert go_on.wait(2 * PATIENCE_S)

    failpoints.arm(f"spark.sink.{point}", failpoints.on_nth_hit(1, hold))
    return held, go_on


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
    looked, go_on = hold_at("after_last_look")
    pipeline.kafka.send(pipeline.source, HUNDRED[:50], partition=0)
    other = second.start()
    assert looked.wait(PATIENCE_S)
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


def only_partition(pipeline: Pipeline, number: int) -> Any:
    """What a query reads that takes one partition of the input."""
    reader = pipeline.spark.readStream.format("oncelog").option("kafka.bootstrap.servers", pipeline.kafka.servers)
    options = {"assign": json.dumps({pipeline.source: [number]}), "startingOffsets": "earliest"}
    return reader.options(**options).load().select("key", "value")


def test_what_another_query_has_read_of_a_new_partition_is_not_skipped(pipeline: Pipeline, second: Pipeline) -> None:
    pipeline.kafka.send(pipeline.source, HUNDRED[:50], partition=0)
    pipeline.run()
    pipeline.kafka.grow(pipeline.source, 3)
    pipeline.kafka.send(pipeline.source, HUNDRED[50:], partition=2)
    second.run(only_partition(second, 2))
    assert pipeline.kafka.values(second.target) == HUNDRED[50:]
    with pytest.raises(Exception, match=f"two queries use group {pipeline.id}.*transactional id {second.id}"):
        pipeline.run()
    pipeline.settings["on_new_checkpoint"] = "reprocess"
    pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED


def test_what_a_consumer_of_the_group_has_read_is_not_skipped(pipeline: Pipeline) -> None:
    pipeline.kafka.send(pipeline.source, HUNDRED[:50], partition=0)
    pipeline.run()
    pipeline.kafka.send(pipeline.source, HUNDRED[50:], partition=1)
    pipeline.kafka.commit(pipeline.id, pipeline.source, {1: 50})
    with pytest.raises(Exception, match="committed that: the group's offsets were changed"):
        pipeline.run()
    pipeline.settings["on_new_checkpoint"] = "reprocess"
    pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED


@pytest.mark.parametrize("fate", ["dies", "does not learn of its commit"])
def test_a_batch_that_a_consumer_of_the_group_commits_over_is_not_written_again(
    pipeline: Pipeline, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It puts back all that the batch has moved, as a consumer does that commits once more where it was."""
    pipeline.kafka.send(pipeline.source, HUNDRED[:50], partition=0)
    pipeline.run()
    pipeline.kafka.send(pipeline.source, HUNDRED[50:], partition=1)

    def put_back() -> None:
        pipeline.kafka.commit(pipeline.id, pipeline.source, {0: 50, 1: 0})

    if fate == "dies":
        crash_in_the_sink(monkeypatch, "after_commit", 1)
        with pytest.raises(Exception, match="SimulatedCrash"):
            pipeline.run()
        put_back()
    else:
        lose_the_answer_to_a_commit(monkeypatch, meanwhile=put_back)
    with pytest.raises(Exception, match="was run before and may have been written"):
        pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED


def test_a_batch_whose_note_is_left_is_skipped_although_a_consumer_has_set_the_group_back(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.kafka.send(pipeline.source, HUNDRED[:20], partition=0)
    pipeline.kafka.send(pipeline.source, HUNDRED[20:50], partition=1)
    pipeline.run()
    for partition, records in ((0, HUNDRED[50:70]), (1, HUNDRED[70:99])):
        pipeline.kafka.send(pipeline.source, records, partition=partition)
    crash_in_the_sink(monkeypatch, "after_commit", 1)
    with pytest.raises(Exception, match="SimulatedCrash"):
        pipeline.run()
    pipeline.kafka.commit(pipeline.id, pipeline.source, {1: 30})
    pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED[:99]
    pipeline.kafka.send(pipeline.source, HUNDRED[99:], partition=1)
    with pytest.raises(Exception, match=r"-1 at 59, the group stands at 30\. A consumer or a tool has committed that"):
        pipeline.run()
    pipeline.settings["on_new_checkpoint"] = "reprocess"
    pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED


def windows(pipeline: Pipeline) -> Any:
    """How many records came in each ten seconds. The last batch reads nothing: it closes windows."""
    seconds = pipeline.read().selectExpr("timestamp_seconds(cast(cast(value as string) as long)) as time")
    counts = seconds.withWatermark("time", "0 seconds").groupBy(window("time", "10 seconds")).count()
    return counts.selectExpr("cast(unix_timestamp(window.start) as string) as value")


def test_a_batch_that_reads_nothing_and_that_a_consumer_of_the_group_commits_over_is_not_written_again(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.kafka.send(pipeline.source, [b"1", b"12", b"25"], partition=0)
    crash_in_the_sink(monkeypatch, "after_commit", 2)
    with pytest.raises(Exception, match="SimulatedCrash"):
        pipeline.run(windows(pipeline))
    assert pipeline.kafka.values(pipeline.target) == [b"0", b"10"]
    pipeline.kafka.commit(pipeline.id, pipeline.source, {0: 3})
    with pytest.raises(Exception, match="was run before and may have been written"):
        pipeline.run(windows(pipeline))
    assert pipeline.kafka.values(pipeline.target) == [b"0", b"10"]


def test_a_commit_that_fails_is_repeated_also_where_the_group_had_expired(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group knows nothing of the query, as before: so the batch was not written."""
    pipeline.kafka.send(pipeline.source, HUNDRED[:50])
    pipeline.run()
    pipeline.kafka.delete_group(pipeline.id)
    pipeline.kafka.send(pipeline.source, HUNDRED[50:])
    lose_a_commit(monkeypatch)
    pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED


def test_a_batch_of_a_new_partition_that_another_query_commits_over_is_not_written_again(
    pipeline: Pipeline, second: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a first batch: the other one has looked at the group before, and puts that partition back to where the
    batch began. The partition is the first of all, and the only one that moves."""
    began, go_on = hold_at("before_write")
    reader = pipeline.spark.readStream.format("oncelog").option("kafka.bootstrap.servers", pipeline.kafka.servers)
    pattern = {"subscribePattern": f"(a-)?{pipeline.source}", "startingOffsets": "earliest"}
    rows = reader.options(**pattern).load().select("key", "value")
    pipeline.kafka.send(pipeline.source, HUNDRED[:50])
    query = pipeline.start(rows, processingTime="0 seconds")
    assert began.wait(PATIENCE_S)
    second.source = pipeline.kafka.create(f"a-{pipeline.source}")
    looked, commit_over = hold_at("after_last_look")
    other = second.start()
    assert looked.wait(PATIENCE_S)
    pipeline.kafka.send(second.source, HUNDRED[50:])
    crash_in_the_sink(monkeypatch, "after_commit", 2)
    go_on.set()
    with pytest.raises(Exception, match="SimulatedCrash"):
        query.awaitTermination()
    commit_over.set()
    other.awaitTermination()
    with pytest.raises(Exception, match="CannotResume"):
        pipeline.run(rows)
    assert pipeline.kafka.values(pipeline.target) == HUNDRED


@on_brokers(SHARED, APACHE[-1])
def test_a_query_that_goes_on_for_another_fences_it(pipeline: Pipeline, second: Pipeline) -> None:
    """The other one has looked at the group for the last time, and is about to commit the same input."""
    pipeline.kafka.send(pipeline.source, HUNDRED[:50], partition=0)
    pipeline.run()
    looked, go_on = hold_at("after_last_look")
    pipeline.kafka.send(pipeline.source, HUNDRED[50:], partition=0)
    first = pipeline.start()
    assert looked.wait(PATIENCE_S)
    second.target = pipeline.target
    second.options |= {"startingOffsets": "committed", "kafka.group.id": pipeline.id}
    try:
        second.run()
    finally:
        go_on.set()
    with pytest.raises(Exception, match=f"another driver has taken over transactional id {pipeline.id}"):
        first.awaitTermination()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED


def test_a_query_that_may_not_fence_another_goes_on_and_says_so(
    spark: Any, name: Callable[[str], str], checkpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"authorizer.class.name": AUTHORIZER, "allow.everyone.if.no.acl.found": True}
    with broker(settings) as process:
        kafka = Kafka(process.bootstrap_servers)
        first = Pipeline(
            spark, kafka, kafka.create(name("in"), 2), kafka.create(name("out"), 2), checkpoint, name("id")
        )
        kafka.send(first.source, HUNDRED[:50])
        first.run()
        with Admin({"bootstrap.servers": kafka.servers}) as admin:
            admin.create_acls(
                [
                    Acl(
                        Resource.TRANSACTIONAL_ID,
                        first.id,
                        Pattern.LITERAL,
                        "User:another",
                        "*",
                        Operation.ALL,
                        Permission.ALLOW,
                    )
                ]
            )
        kafka.send(first.source, HUNDRED[50:])
        second = dataclasses.replace(
            first,
            checkpoint=str(tmp_path / "second"),
            id=name("second"),
            options={"startingOffsets": "committed", "kafka.group.id": first.id},
            settings={"group_id": first.id},
        )
        second.run()
        assert kafka.values(first.target) == HUNDRED
    assert f"transactional id {first.id} may not be used by this query: it is not fenced" in caplog.text
