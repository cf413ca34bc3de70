"""Where a query began stays where it was, whatever happens before its first batch is done."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.core import failpoints
from oncelog.spark.source import OncelogDataSource
from tests.spark.brokers import on_every_broker
from tests.spark.kafka import Kafka
from tests.spark.pipeline import Pipeline, forget_the_beginning
from tests.spark.test_cluster import run_driver
from tests.spark.test_sink_failures import crash_in_the_sink
from tests.spark.test_state import as_table, counts, run_counts

pytestmark = pytest.mark.spark

HUNDRED = [b"%03d" % i for i in range(100)]
TEN = [b"%03d" % i for i in range(100, 110)]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm_all()


def die(point: str, run: Callable[[], Any], batch: int = 1) -> None:
    """Run a query whose driver dies in the so-many-th batch."""
    with pytest.MonkeyPatch.context() as patched:
        crash_in_the_sink(patched, point, batch)
        with pytest.raises(Exception, match="SimulatedCrash"):
            run()
    failpoints.disarm_all()


def keyed(records: list[bytes]) -> list[tuple[bytes, bytes]]:
    return [(b"all", record) for record in records]


def register_busy_source(spark: Any, kafka: Kafka, topic: str, mark: Path) -> None:
    """Format `busy`: the first time it is asked where its topic ends, a hundred records have just come."""
    servers, once = kafka.servers, str(mark)

    class Busy(OncelogDataSource):
        @classmethod
        def name(cls) -> str:
            return "busy"

        def streamReader(self, schema: Any) -> Any:
            from pathlib import Path

            from confluent_kafka import Producer

            reader: Any = super().streamReader(schema)
            honest = reader.plan.latest_offsets

            def after_a_hundred(*given: Any) -> Any:
                if not Path(once).exists():
                    Path(once).touch()
                    producer = Producer({"bootstrap.servers": servers})
                    for i in range(100):
                        producer.produce(topic, value=b"%03d" % i, partition=0)
                    producer.flush(30)
                return honest(*given)

            reader.plan.latest_offsets = after_a_hundred
            return reader

    spark.dataSource.register(Busy)


def test_a_first_batch_from_latest_is_run_again_from_where_it_began(pipeline: Pipeline, tmp_path: Path) -> None:
    register_busy_source(pipeline.spark, pipeline.kafka, pipeline.source, tmp_path / "sent")

    def run() -> None:
        reader = pipeline.spark.readStream.format("busy").option("kafka.bootstrap.servers", pipeline.kafka.servers)
        rows = reader.option("subscribe", pipeline.source).load().select("key", "value")
        query = pipeline.start(rows, processingTime="0 seconds")
        query.processAllAvailable()
        query.stop()

    die("before_write", run)
    assert pipeline.kafka.values(pipeline.target) == []
    run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED
    assert pipeline.kafka.group_offsets(pipeline.id, pipeline.source, 1) == [100]


def test_a_first_batch_from_committed_counts_in_the_state_although_the_group_has_moved(pipeline: Pipeline) -> None:
    """The batch is committed, and Spark has not noted it: it is run again for its state."""
    pipeline.kafka.send(pipeline.source, keyed(HUNDRED))
    pipeline.options |= {"startingOffsets": "committed", "kafka.group.id": pipeline.id}
    die("after_commit", lambda: run_counts(pipeline, counts(pipeline)))
    assert as_table(pipeline) == {b"all": 100}
    pipeline.kafka.send(pipeline.source, keyed(TEN))
    run_counts(pipeline, counts(pipeline))
    assert as_table(pipeline) == {b"all": 110}


@pytest.mark.timeout(3600)
def test_a_driver_killed_in_its_first_batch_from_committed_is_followed_by_one_with_the_same_state(
    kafka: Kafka, name: Callable[[str], str], checkpoint: str
) -> None:
    source, target, group = kafka.create(name("in"), 2), kafka.create(name("out"), 2), name("id")
    kafka.send(source, keyed(HUNDRED))
    order = {
        "master": "local[2,4]",
        "servers": kafka.servers,
        "source": source,
        "target": target,
        "id": group,
        "checkpoint": checkpoint,
        "options": {"startingOffsets": "committed", "kafka.group.id": group},
        "counts": 1,
    }
    assert run_driver(**order, die_at="after_commit", die_at_hit=1) == -signal.SIGKILL
    assert kafka.values(target) == [b"100"]
    kafka.send(source, keyed(TEN))
    assert run_driver(**order) == 0
    assert kafka.values(target) == [b"100", b"110"]
    assert sum(offset for offset in kafka.group_offsets(group, source, 2) if offset > 0) == 110


def test_a_rebuilt_state_survives_a_crash_in_its_first_batch(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.kafka.send(pipeline.source, keyed(HUNDRED[:22]))
    run_counts(pipeline, counts(pipeline, rebuilt=True))
    pipeline.kafka.send(pipeline.source, keyed(TEN))
    pipeline.checkpoint = str(tmp_path / "rebuilt")
    pipeline.options |= {"startingOffsets": "committed", "kafka.group.id": pipeline.id}
    die("after_commit", lambda: run_counts(pipeline, counts(pipeline, rebuilt=True)))
    assert as_table(pipeline) == {b"all": 32}
    pipeline.kafka.send(pipeline.source, keyed([b"one more"]))
    run_counts(pipeline, counts(pipeline, rebuilt=True))
    assert as_table(pipeline) == {b"all": 33}


def test_a_first_batch_whose_records_are_deleted_before_it_runs_again_is_refused(pipeline: Pipeline) -> None:
    pipeline.kafka.send(pipeline.source, HUNDRED, partition=0)
    die("before_commit", pipeline.run)
    pipeline.kafka.delete_records(pipeline.source, 0, 60)
    with pytest.raises(Exception, match=r"offsets 0 to 60 are deleted already"):
        pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == []
    pipeline.options["failOnDataLoss"] = "false"
    pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED[60:]


def test_a_partition_that_appeared_is_read_again_from_where_it_began(pipeline: Pipeline) -> None:
    pipeline.kafka.send(pipeline.source, [b"first"], partition=0)
    pipeline.run()
    pipeline.kafka.grow(pipeline.source, 3)
    pipeline.kafka.send(pipeline.source, HUNDRED, partition=2)
    die("before_commit", pipeline.run)
    pipeline.kafka.delete_records(pipeline.source, 2, 60)
    with pytest.raises(Exception, match=r"-2: offsets 0 to 60 are deleted already"):
        pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == [b"first"]


def test_a_partition_that_appeared_and_lost_its_beginning_before_it_was_read_is_refused(pipeline: Pipeline) -> None:
    pipeline.kafka.send(pipeline.source, [b"first"], partition=0)
    pipeline.run()
    pipeline.kafka.grow(pipeline.source, 3)
    pipeline.kafka.send(pipeline.source, HUNDRED, partition=2)
    pipeline.kafka.delete_records(pipeline.source, 2, 60)
    with pytest.raises(Exception, match=r"-2 is new to the stream, and its offsets 0 to 60 are deleted already"):
        pipeline.run()
    pipeline.options["failOnDataLoss"] = "false"
    pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == [*HUNDRED[60:], b"first"]


@on_every_broker
def test_a_topic_that_was_created_again_is_written_from_its_beginning_where_data_may_be_lost(
    pipeline: Pipeline,
) -> None:
    pipeline.kafka.send(pipeline.source, HUNDRED[:50], partition=0)
    pipeline.run()
    pipeline.kafka.delete(pipeline.source)
    pipeline.kafka.create(pipeline.source, 2)
    pipeline.kafka.send(pipeline.source, HUNDRED[50:] + TEN, partition=0)
    with pytest.raises(Exception, match=f"topic {pipeline.source} was deleted and created again"):
        pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED[:50]
    pipeline.options["failOnDataLoss"] = "false"
    pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED + TEN
    assert pipeline.kafka.group_offsets(pipeline.id, pipeline.source, 1) == [60]


def test_a_first_batch_of_one_trigger_reads_what_is_there(pipeline: Pipeline) -> None:
    """`once` runs one batch and no more: it must not be spent on noting where the query began."""
    pipeline.kafka.send(pipeline.source, HUNDRED)
    pipeline.start(once=True).awaitTermination()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_a_pattern_that_nothing_matches_yet_waits_for_topics(
    pipeline: Pipeline, name: Callable[[str], str], point: str
) -> None:
    """The sink has no topic of its own, under which it could note the batch without input."""
    pattern = name("later")
    pipeline.settings["topic"] = None

    def run() -> None:
        reader = pipeline.spark.readStream.format("oncelog").option("kafka.bootstrap.servers", pipeline.kafka.servers)
        rows = reader.options(subscribePattern=f"{pattern}.*").load()
        pipeline.run(rows.selectExpr("key", "value", f"'{pipeline.target}' as topic"))

    run()
    pipeline.kafka.send(pipeline.kafka.create(pattern), HUNDRED)
    die(point, run)
    group, pipeline.settings["group_id"] = pipeline.id, name("another-group")
    with pytest.raises(Exception, match="group_id was changed"):
        run()
    pipeline.settings["group_id"] = group
    run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED


def test_a_quiet_query_runs_no_further_batch(pipeline: Pipeline) -> None:
    pipeline.kafka.send(pipeline.source, HUNDRED)
    for _ in range(3):
        pipeline.run()
    assert sorted(path.name for path in Path(pipeline.checkpoint, "offsets").iterdir() if path.name.isdigit()) == ["0"]


def test_an_unfinished_first_batch_of_an_earlier_version_is_run_again(pipeline: Pipeline) -> None:
    pipeline.kafka.send(pipeline.source, HUNDRED)
    die("before_commit", pipeline.run)
    forget_the_beginning(pipeline.checkpoint, 0)
    pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED


def test_an_unfinished_first_batch_of_an_earlier_version_is_not_begun_somewhere_else(pipeline: Pipeline) -> None:
    pipeline.kafka.send(pipeline.source, HUNDRED, partition=0)
    die("before_commit", pipeline.run)
    forget_the_beginning(pipeline.checkpoint, 0)
    pipeline.kafka.delete_records(pipeline.source, 0, 60)
    with pytest.raises(Exception, match=r"planned by an earlier version.*startingOffsets as JSON"):
        pipeline.run()
    pipeline.options["startingOffsets"] = json.dumps({pipeline.source: {"0": 60, "1": 0}})
    pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED[60:]


def test_a_checkpoint_of_an_earlier_version_goes_on(pipeline: Pipeline) -> None:
    pipeline.kafka.send(pipeline.source, HUNDRED)
    pipeline.run()
    forget_the_beginning(pipeline.checkpoint, 0)
    pipeline.kafka.send(pipeline.source, TEN)
    pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == HUNDRED + TEN
