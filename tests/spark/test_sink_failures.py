"""Every row of the failure table: what can break between the first record and Spark's own bookkeeping.

Each test breaks one thing once, lets the pipeline go on, and counts: every input record is in the output once, and the
group stands at the end of the input.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import oncelog.spark
from oncelog.client.errors import ErrorCode, KafkaError, ProducerFenced, TimedOut
from oncelog.client.transaction import TransactionClient
from oncelog.core import failpoints
from oncelog.core.ids import ProducerIdAndEpoch
from oncelog.protocol.batch import iter_headers
from oncelog.spark import small_batch, write_job
from oncelog.spark.sink_options import sink_options
from oncelog.spark.spark_session import UnsafeSetting
from oncelog.spark.transactor import DriverFenced, Transactor
from oncelog.spark.write_job import Written
from oncelog.testing import BrokerProcess, broker
from tests.spark.broken_task import breaking_once
from tests.spark.brokers import on_every_broker, with_values
from tests.spark.kafka import PATIENCE_S, Kafka
from tests.spark.pipeline import Pipeline
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

RECORDS = [b"%03d" % i for i in range(60)]


class SimulatedCrash(Exception):
    """Passes the recovery of the sink, like the death of its process: nothing is aborted, nothing cleaned up."""


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm_all()


@pytest.fixture
def loaded(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Two batches of input, so that something happens before and after the failure; each shuffled, as large ones are.

    All the rest is the same for batches that are written without a shuffle.
    """
    monkeypatch.setattr(small_batch, "BATCH_OFFSETS", 0)
    pipeline.kafka.send(pipeline.source, [(value, value) for value in RECORDS])
    pipeline.options["maxOffsetsPerTrigger"] = "40"
    return pipeline


def check(pipeline: Pipeline, records: list[bytes] = RECORDS) -> None:
    assert pipeline.kafka.values(pipeline.target) == sorted(records)
    ends = [sum(1 for s in pipeline.kafka.read(pipeline.source) if s.partition == p) for p in range(2)]
    assert pipeline.kafka.group_offsets(pipeline.id, pipeline.source, 2) == ends


@pytest.fixture
def on_its_own_broker(
    spark: Any, name: Callable[[str], str], checkpoint: str
) -> Iterator[tuple[Pipeline, BrokerProcess]]:
    """One batch of input, on a broker that may be killed."""
    with broker() as process:
        kafka = Kafka(process.bootstrap_servers)
        one = Pipeline(spark, kafka, kafka.create(name("in"), 2), kafka.create(name("out"), 2), checkpoint, name("id"))
        kafka.send(one.source, [(value, value) for value in RECORDS])
        yield one, process


def break_a_task(monkeypatch: pytest.MonkeyPatch, once: Path, deed: Callable[[], None]) -> None:
    monkeypatch.setattr(write_job, "_writing", breaking_once(write_job._writing, str(once), deed))


def lose_the_answer_to_a_commit(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None] = lambda: None
) -> list[ProducerIdAndEpoch]:
    """The first commit succeeds, and its driver does not learn of it. The list has who that was, as soon as it did."""
    honest = TransactionClient.end
    lost: list[ProducerIdAndEpoch] = []

    def losing(client: TransactionClient, commit: bool) -> ProducerIdAndEpoch:
        before = client.identity
        after = honest(client, commit)
        if commit and not lost:
            client.core.identity = before
            meanwhile()
            lost.append(before)
            raise TimedOut("the answer was lost")
        return after

    monkeypatch.setattr(TransactionClient, "end", losing)
    return lost


def lose_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one does not arrive, and its driver does not learn of that."""
    honest, lost = TransactionClient.end, False

    def losing(client: TransactionClient, commit: bool) -> ProducerIdAndEpoch:
        nonlocal lost
        if commit and not lost:
            lost = True
            raise TimedOut("the answer was lost")
        return honest(client, commit)

    monkeypatch.setattr(TransactionClient, "end", losing)


def crash_in_the_sink(monkeypatch: pytest.MonkeyPatch, point: str, batch: int) -> None:
    """The first driver to come to this point for the so-many-th time dies there."""
    recover = Transactor._recover

    def die_instead(self: Transactor, identity: Any, what: str, error: Exception) -> None:
        if isinstance(error, SimulatedCrash):
            raise error
        recover(self, identity, what, error)

    def crash() -> None:
        raise SimulatedCrash(point)

    monkeypatch.setattr(Transactor, "_recover", die_instead)
    failpoints.arm(f"spark.sink.{point}", failpoints.on_nth_hit(batch, crash))


def test_a_task_that_fails_after_writing_leaves_nothing_behind(
    loaded: Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail() -> None:
        raise RuntimeError("the task fails after it has written")

    break_a_task(monkeypatch, tmp_path / "once", fail)
    loaded.run()
    assert (tmp_path / "once").exists()
    check(loaded)
    # The rows of the failed attempt are in the log, and aborted.
    assert len(loaded.kafka.read(loaded.target, committed=False)) > len(RECORDS)


@on_every_broker
def test_a_killed_python_worker_leaves_nothing_behind(
    loaded: Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    break_a_task(monkeypatch, tmp_path / "once", lambda: os.kill(os.getpid(), signal.SIGKILL))
    loaded.run()
    assert (tmp_path / "once").exists()
    check(loaded)


def test_a_stage_that_spark_would_retry_fails_the_attempt_instead(
    loaded: Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: Callable[[str], str], spark: Any
) -> None:
    """Shuffle files vanish while half of the tasks have written: the others cannot read their input any more."""
    loaded.target = loaded.kafka.create(name("wide"), 4)
    folder = spark.sparkContext.getConf().get("spark.local.dir")

    def lose_shuffle_files() -> None:
        import pathlib

        for file in pathlib.Path(folder).rglob("shuffle_*"):
            file.unlink(missing_ok=True)

    errors: list[str] = []
    recover = Transactor._recover

    def noting(self: Transactor, identity: Any, what: str, error: Exception) -> None:
        errors.append(str(error))
        recover(self, identity, what, error)

    monkeypatch.setattr(Transactor, "_recover", noting)
    break_a_task(monkeypatch, tmp_path / "once", lose_shuffle_files)
    loaded.run()
    assert len(errors) == 1
    assert "FetchFailed" in errors[0]
    assert "maximum allowable number of times: 1" in errors[0]
    check(loaded)
    assert len(loaded.kafka.read(loaded.target, committed=False)) > len(RECORDS)


def test_speculation_is_refused_by_name(loaded: Pipeline, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = spark.sparkContext._conf
    for setting, value, safe in (
        ("spark.speculation", "true", "false"),
        ("spark.stage.maxConsecutiveAttempts", "4", "1"),
        ("spark.stage.maxAttempts", "2", "1"),
    ):
        conf.set(setting, value)
        try:
            with pytest.raises(UnsafeSetting, match=setting):
                loaded.start()
        finally:
            conf.set(setting, safe)


@with_values("point", ["before_offsets", "before_commit", "after_commit"], on_apache=["before_commit", "after_commit"])
def test_a_driver_that_dies_is_followed_by_one_that_goes_on(
    loaded: Pipeline, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_in_the_sink(monkeypatch, point, 2)
    with pytest.raises(Exception, match="SimulatedCrash"):
        loaded.run()
    if point != "after_commit":
        # What the dead driver left open is in the log, and not visible.
        assert len(loaded.kafka.read(loaded.target, committed=False)) > len(loaded.kafka.values(loaded.target))
    loaded.run()
    check(loaded)


def test_a_driver_that_dies_in_its_first_batch_is_followed_although_the_group_knows_nothing(
    loaded: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_in_the_sink(monkeypatch, "before_commit", 1)
    with pytest.raises(Exception, match="SimulatedCrash"):
        loaded.run()
    assert loaded.kafka.values(loaded.target) == []
    loaded.run()
    check(loaded)


@pytest.mark.parametrize("topic", [True, False], ids=["topic of the sink", "topics of rows"])
def test_a_plain_write_without_a_run_id_is_not_repeated_when_the_answer_is_lost(
    loaded: Pipeline, spark: Any, monkeypatch: pytest.MonkeyPatch, topic: bool
) -> None:
    lost = lose_the_answer_to_a_commit(monkeypatch)
    rows = spark.createDataFrame([("a", loaded.target), ("b", loaded.target)], "value string, topic string")
    written = oncelog.spark.write_batch(
        rows,
        bootstrap_servers=loaded.kafka.servers,
        transactional_id=loaded.id,
        topic=loaded.target if topic else None,
    )
    assert lost
    assert written is not None
    assert written.records == 2
    assert loaded.kafka.values(loaded.target) == [b"a", b"b"]


@with_values("version", ["0", "2"], on_apache=["2"])
def test_a_commit_whose_answer_is_lost_is_not_repeated(
    loaded: Pipeline, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    loaded.settings["kafka"] = {"oncelog.transaction.version.max": version}
    lost = lose_the_answer_to_a_commit(monkeypatch)
    loaded.run()
    assert lost
    check(loaded)


def test_a_lost_commit_is_recognised_after_the_coordinator_restarted(
    on_its_own_broker: tuple[Pipeline, BrokerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted coordinator has forgotten the epoch before the last: the driver must not think itself fenced."""
    one, process = on_its_own_broker

    def restart() -> None:
        process.kill()
        process.start()

    lost = lose_the_answer_to_a_commit(monkeypatch, meanwhile=restart)
    one.run()
    assert lost
    check(one)


def test_a_broker_that_restarts_in_the_middle_is_waited_for(on_its_own_broker: tuple[Pipeline, BrokerProcess]) -> None:
    one, process = on_its_own_broker

    def restart() -> None:
        process.kill()
        threading.Thread(target=process.start).start()

    failpoints.arm("spark.sink.before_commit", failpoints.on_nth_hit(1, restart))
    one.run()
    check(one)


def test_a_partition_whose_log_was_cut_is_read_on_where_data_may_be_lost(
    on_its_own_broker: tuple[Pipeline, BrokerProcess],
) -> None:
    """As after an unclean election: below the offset that the query has committed there are new records."""
    one, process = on_its_own_broker
    lost = [b"lost-%d" % i for i in range(10)]
    one.kafka.send(one.source, lost, partition=0)
    one.run()
    process.kill()
    (log,) = process.data_dir.glob(f"**/{one.source}-0/*.log")
    *_, (last, _) = iter_headers(log.read_bytes())
    os.truncate(log, last)
    process.start()
    new = [b"new-%d" % i for i in range(5)]
    one.kafka.send(one.source, new, partition=0)
    with pytest.raises(Exception, match=r"-0 ends at \d+, before offset \d+ where the stream is"):
        one.run()
    one.options["failOnDataLoss"] = "false"
    for _ in range(2):
        one.run()
    assert one.kafka.values(one.target) == sorted([*RECORDS, *lost])
    one.kafka.send(one.source, new, partition=0)
    one.run()
    check(one, [*RECORDS, *lost, *new])


@with_values("point", ["before_write", "before_offsets", "before_commit"], on_apache=["before_write"])
def test_a_driver_that_was_replaced_stops_and_says_so(loaded: Pipeline, point: str) -> None:
    """Its successor takes over while its batch is being written: what comes next, Produce, TxnOffsetCommit or EndTxn,
    is fenced."""

    def take_over() -> None:
        with TransactionClient(_config(loaded.kafka)) as successor:
            successor.init(loaded.id)

    failpoints.arm(f"spark.sink.{point}", failpoints.on_nth_hit(2, take_over))
    with pytest.raises(Exception, match=f"another driver has taken over transactional id {loaded.id}"):
        loaded.run()
    assert len(loaded.kafka.values(loaded.target)) == 40
    loaded.run()
    check(loaded)


class Replaced:
    """The identity of a driver whose transactional id somebody else has taken over."""

    def fresh(self) -> None:
        return

    def abandon(self) -> None:
        raise ProducerFenced(ErrorCode.PRODUCER_FENCED, "a newer producer")


@pytest.mark.parametrize("error", [ProducerFenced(ErrorCode.PRODUCER_FENCED, "refused"), TimedOut("no answer")])
@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_driver_that_was_replaced_knows_what_is_visible_only_if_its_commit_was_answered(
    error: KafkaError, in_doubt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactor = Transactor(sink_options(bootstrap_servers="127.0.0.1:1", transactional_id="a", topic="t"))
    monkeypatch.setattr(transactor, "_own_identity", Replaced)
    monkeypatch.setattr(error, "in_doubt", in_doubt)

    def commit(identity: Any) -> Written | None:
        raise error

    what = "Whether this batch is visible is not known" if in_doubt else "Nothing of this batch is visible"
    with pytest.raises(DriverFenced, match=what):
        transactor.run("batch 3", commit)


def test_of_two_queries_with_one_transactional_id_the_older_stops(loaded: Pipeline, tmp_path: Path) -> None:
    first = loaded.start(processingTime="100 milliseconds")
    wait_until(lambda: first.recentProgress)
    twin = dataclasses.replace(loaded, checkpoint=str(tmp_path / "twin"), settings={"group_id": f"{loaded.id}-twin"})
    second = twin.start(processingTime="100 milliseconds")
    wait_until(lambda: second.recentProgress)
    loaded.kafka.send(loaded.source, [(b"more", b"more")])
    with pytest.raises(Exception, match="If a second query uses the same transactional id or the same group"):
        first.awaitTermination(PATIENCE_S)
    assert second.isActive
    second.stop()


def test_a_new_checkpoint_refuses_to_repeat_input(loaded: Pipeline, tmp_path: Path) -> None:
    loaded.run()
    loaded.kafka.send(loaded.source, [(b"more", b"more")])
    loaded.checkpoint = str(tmp_path / "new")
    with pytest.raises(Exception, match="is new to group"):
        loaded.run()
    check_only = loaded.kafka.values(loaded.target)
    assert check_only == sorted(RECORDS)


def test_a_new_checkpoint_continues_where_the_group_stands(loaded: Pipeline, tmp_path: Path) -> None:
    loaded.run()
    loaded.kafka.send(loaded.source, [(b"more", b"more")])
    loaded.checkpoint = str(tmp_path / "new")
    loaded.options |= {"startingOffsets": "committed", "kafka.group.id": loaded.id}
    loaded.run()
    check(loaded, [*RECORDS, b"more"])


def test_a_new_checkpoint_may_repeat_input_on_purpose(loaded: Pipeline, tmp_path: Path) -> None:
    loaded.run()
    loaded.checkpoint = str(tmp_path / "new")
    loaded.settings["on_new_checkpoint"] = "reprocess"
    loaded.run()
    check(loaded, RECORDS * 2)


def test_an_old_copy_of_the_checkpoint_is_not_followed(loaded: Pipeline, tmp_path: Path) -> None:
    loaded.run()
    shutil.copytree(loaded.checkpoint, tmp_path / "old")
    loaded.kafka.send(loaded.source, [(b"more", b"more")])
    loaded.run()
    loaded.kafka.send(loaded.source, [(b"later", b"later")])
    loaded.checkpoint = str(tmp_path / "old")
    with pytest.raises(Exception, match="the checkpoint is an older copy"):
        loaded.run()
    assert loaded.kafka.values(loaded.target) == sorted([*RECORDS, b"more"])


@pytest.mark.parametrize("small", [0, 5_000], ids=["shuffled", "by the driver"])
def test_a_batch_that_can_never_succeed_fails_the_query_and_leaves_nothing_open(
    loaded: Pipeline, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(small_batch, "BATCH_OFFSETS", small)
    loaded.settings["batch_attempts"] = 1
    frame = loaded.read().selectExpr("key", "cast(raise_error('never') as binary) as value")
    with pytest.raises(Exception, match="never"):
        loaded.run(frame)
    assert loaded.kafka.read(loaded.target) == []
    del loaded.settings["batch_attempts"]
    loaded.run()
    check(loaded)


def test_a_small_batch_the_driver_cannot_write_is_tried_with_tasks(
    loaded: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[str] = []
    collect, run_orders = small_batch.SmallBatches.collect, write_job.run_orders

    def refusing(*given: Any) -> Any:
        modes.append("driver")
        if len(modes) == 1:
            raise RuntimeError("Total size of serialized results is bigger than spark.driver.maxResultSize")
        return collect(*given)

    def noting(frame: Any, columns: Any, orders: write_job.TaskOrders) -> write_job.Written:
        modes.append(orders.mode.value)
        return run_orders(frame, columns, orders)

    monkeypatch.setattr(small_batch, "BATCH_OFFSETS", 5_000)
    monkeypatch.setattr(small_batch.SmallBatches, "collect", refusing)
    monkeypatch.setattr(write_job, "run_orders", noting)
    loaded.run()
    assert modes == ["driver", "shuffled", "driver"]
    check(loaded)


def test_stopping_a_query_does_not_wait_for_further_attempts(
    loaded: Pipeline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.sql import functions as sf

    begun = tmp_path / "begun"

    def slowly(value: bytes) -> bytes:
        begun.touch()
        time.sleep(0.5)
        return value

    rows = loaded.read().select("key", sf.udf(slowly, "binary")("value").alias("value"))
    query = loaded.start(rows, processingTime="0 seconds")
    wait_until(begun.exists)
    query.stop()
    assert "failed (attempt" not in caplog.text
    loaded.run()
    check(loaded)


def _config(kafka: Kafka) -> Any:
    from oncelog.client.config import ClientConfig

    return ClientConfig(bootstrap_servers=kafka.servers)
