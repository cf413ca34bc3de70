"""Micro-batches written as transactions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

import oncelog.spark
from oncelog.client import TransactionClient, topic_facts, worker_client
from oncelog.client.config import ClientConfig
from oncelog.core.hashing import partition_for_key
from oncelog.core.sink_note import Note
from oncelog.spark import sink, small_batch
from oncelog.spark.demo.audit import audit
from oncelog.spark.sink import ExactlyOnceSink
from oncelog.spark.sink_options import SinkOptions
from oncelog.spark.transactor import Transactor
from oncelog.testing import broker
from peers.spark.connector import connector_jars
from tests.spark.brokers import APACHE, OLDER, on_brokers, on_every_broker, with_values
from tests.spark.kafka import PATIENCE_S, Kafka
from tests.spark.pipeline import Pipeline
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

Name = Callable[[str], str]


@with_values("small", [0, 5_000], on_apache=[0])
def test_output_and_input_offsets_are_committed_together(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    """Shuffled, and by the driver."""
    monkeypatch.setattr(small_batch, "BATCH_OFFSETS", small)
    kafka = pipeline.kafka
    kafka.send(pipeline.source, [(b"k%d" % i, b"v%d" % i) for i in range(100)])
    pipeline.options["maxOffsetsPerTrigger"] = "60"
    pipeline.run()
    seen = kafka.read(pipeline.target)
    assert sorted((s.key, s.value) for s in seen) == sorted((b"k%d" % i, b"v%d" % i) for i in range(100))
    assert all(s.partition == partition_for_key(s.key or b"", 2) for s in seen)
    ends = [sum(1 for s in kafka.read(pipeline.source) if s.partition == p) for p in range(2)]
    assert kafka.group_offsets(pipeline.id, pipeline.source, 2) == ends
    # Two batches, and so two transactions, whatever the number of tasks and partitions.
    config = ClientConfig(bootstrap_servers=kafka.servers)
    found = audit(config, [pipeline.target])
    assert (found.committed, found.aborted, found.torn, found.open) == (2, 0, 0, 0)
    notes = [Note.from_text(offset.metadata) for offset in worker_client(config).group_offsets(pipeline.id).values()]
    query = json.loads((Path(pipeline.checkpoint) / "metadata").read_text())["id"]
    planned = json.loads((Path(pipeline.checkpoint) / "offsets" / "1").read_text().splitlines()[1])["batchTimestampMs"]
    assert notes == [Note(query, 1, planned, writer=pipeline.id)] * 2


@on_brokers(*OLDER, *APACHE)
def test_two_equal_batches_are_two_batches(spark: Any, kafka: Kafka, name: Name, checkpoint: str) -> None:
    """Batches of one shape carry the same sequence numbers: only a fresh epoch tells them from repetitions."""
    source, target = kafka.create(name("in")), kafka.create(name("out"))
    kafka.send(source, [(b"k", b"same")] * 6)
    one = Pipeline(spark, kafka, source, target, checkpoint, name("id"), {"maxOffsetsPerTrigger": "2"})
    one.run()
    assert kafka.values(target) == [b"same"] * 6
    kafka.send(source, [(b"k", b"same")] * 2)
    one.run()
    assert kafka.values(target) == [b"same"] * 8
    assert kafka.group_offsets(one.id, source, 1) == [8]


def test_an_older_client_protocol_works_on_a_newer_broker(pipeline: Pipeline) -> None:
    pipeline.settings["kafka"] = {"oncelog.transaction.version.max": "0"}
    pipeline.options["maxOffsetsPerTrigger"] = "2"
    pipeline.kafka.send(pipeline.source, [b"same"] * 4, partition=0)
    pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == [b"same"] * 4


@on_every_broker
def test_rows_choose_topic_partition_and_headers(pipeline: Pipeline, name: Name) -> None:
    from pyspark.sql import functions as sf

    kafka = pipeline.kafka
    other = kafka.create(name("other"), 3)
    kafka.send(pipeline.source, [b"%d" % i for i in range(8)], partition=0)
    number = sf.col("value").cast("string").cast("int")
    rows = pipeline.read().select(
        sf.col("value").cast("string").alias("key"),
        sf.col("value").cast("string").alias("value"),
        sf.when(number < 4, other).alias("topic"),
        sf.when(number % 4 == 0, 1).alias("partition"),
        sf.array(sf.struct(sf.lit("n").alias("key"), sf.col("value").alias("value"))).alias("headers"),
    )
    pipeline.run(rows)
    assert kafka.values(other) == [b"0", b"1", b"2", b"3"]
    assert kafka.values(pipeline.target) == [b"4", b"5", b"6", b"7"]
    for topic, partitions in ((other, 3), (pipeline.target, 2)):
        for seen in kafka.read(topic):
            assert seen.headers == [("n", seen.value)]
            own = 1 if seen.value in (b"0", b"4") else partition_for_key(seen.key or b"", partitions)
            assert seen.partition == own


def test_rows_without_keys_are_written_without_a_shuffle(pipeline: Pipeline) -> None:
    pipeline.kafka.send(pipeline.source, [b"%03d" % i for i in range(100)])
    pipeline.run(pipeline.read().select("value"))
    assert pipeline.kafka.values(pipeline.target) == [b"%03d" % i for i in range(100)]


def test_more_tasks_than_partitions_are_shuffled_together(pipeline: Pipeline, name: Name) -> None:
    pipeline.target = pipeline.kafka.create(name("narrow"), 1)
    pipeline.options["minPartitions"] = "3"
    pipeline.kafka.send(pipeline.source, [b"%03d" % i for i in range(100)])
    pipeline.run(pipeline.read().select("value"))
    assert pipeline.kafka.values(pipeline.target) == [b"%03d" % i for i in range(100)]


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_records_can_be_compressed(pipeline: Pipeline, codec: str) -> None:
    pipeline.settings["compression_type"] = codec
    pipeline.kafka.send(pipeline.source, [b"x" * 1000] * 50)
    pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == [b"x" * 1000] * 50


def test_a_source_without_offsets_of_its_own_is_exactly_once_too(
    pipeline: Pipeline, spark: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "1.txt").write_text("a\nb\n")
    files = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))
    pipeline.run(files)
    (folder / "2.txt").write_text("c\n")
    pipeline.run(files)
    assert pipeline.kafka.values(pipeline.target) == [b"a", b"b", b"c"]
    assert pipeline.kafka.group_offsets(pipeline.id, pipeline.target, 1) == [1]


def test_a_source_that_makes_up_its_rows_is_exactly_once_too(pipeline: Pipeline, spark: Any) -> None:
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).option("startTimestamp", 0).load()
    query = pipeline.start(rate.selectExpr("cast(value as string) as value"), processingTime="0 seconds")
    while query.isActive and len(query.recentProgress) < 3:
        query.awaitTermination(0.1)
    query.stop()
    written = sorted(int(value or b"") for value in pipeline.kafka.values(pipeline.target))
    assert len(written) >= 15
    assert written == list(range(len(written)))


@pytest.mark.skipif(
    not connector_jars() and os.environ.get("CI") != "true",
    reason="Spark's Kafka connector is fetched with Maven, which is not here",
)
def test_sparks_own_kafka_source_is_exactly_once_too(pipeline: Pipeline, spark: Any) -> None:
    pipeline.kafka.send(pipeline.source, [(b"k%d" % i, b"v%d" % i) for i in range(50)])
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", pipeline.kafka.servers)
    rows = reader.options(subscribe=pipeline.source, startingOffsets="earliest", maxOffsetsPerTrigger="30").load()
    pipeline.run(rows.select("key", "value"))
    pipeline.run(rows.select("key", "value"))
    assert pipeline.kafka.values(pipeline.target) == sorted(b"v%d" % i for i in range(50))
    assert sum(pipeline.kafka.group_offsets(pipeline.id, pipeline.source, 2)) == 50


def test_checkpoints_may_lie_on_any_hadoop_file_system(pipeline: Pipeline, spark: Any, tmp_path: Path) -> None:
    """viewfs stands for any scheme that is not a local path."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.somewhere.link./data", f"file://{tmp_path}")
    pipeline.checkpoint = "viewfs://somewhere/data/checkpoint"
    for value in (b"a", b"b"):
        pipeline.kafka.send(pipeline.source, [value], partition=0)
        pipeline.run()
    assert pipeline.kafka.values(pipeline.target) == [b"a", b"b"]
    assert pipeline.kafka.group_offsets(pipeline.id, pipeline.source, 1) == [2]
    assert (tmp_path / "checkpoint" / "offsets" / "1").exists()


def test_one_writer_is_one_query(pipeline: Pipeline) -> None:
    pipeline.kafka.send(pipeline.source, [b"a"])
    sink = ExactlyOnceSink(pipeline.spark, Transactor(make_options(pipeline)))
    sink._busy.acquire()
    with pytest.raises(oncelog.spark.OptionError, match="two queries were started from one write_stream"):
        sink(pipeline.spark.range(1), 0)


def make_options(pipeline: Pipeline) -> SinkOptions:
    client = ClientConfig(bootstrap_servers=pipeline.kafka.servers)
    return SinkOptions(client=client, transactional_id=pipeline.id, group_id=pipeline.id, topic=pipeline.target)


def test_a_batch_without_rows_still_moves_the_offsets(pipeline: Pipeline) -> None:
    pipeline.kafka.send(pipeline.source, [b"a", b"b"], partition=0)
    pipeline.run(pipeline.read().where("value is null").select("value"))
    assert pipeline.kafka.read(pipeline.target) == []
    assert pipeline.kafka.group_offsets(pipeline.id, pipeline.source, 2) == [2, 0]


def test_a_batch_fetches_and_commits_only_the_offsets_that_moved(
    pipeline: Pipeline, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = pipeline.kafka
    pipeline.source = kafka.create(name("many"), 50)
    for partition in range(50):
        kafka.send(pipeline.source, [b"a"], partition=partition)
    commit, fetch = TransactionClient.commit_offsets, TransactionClient.fetch_offsets
    committed: list[set[int]] = []
    fetched: list[int | None] = []

    def noting_commit(client: Any, group: str, offsets: Any, *rest: Any, **more: Any) -> None:
        committed.append({partition.partition for partition in offsets})
        commit(client, group, offsets, *rest, **more)

    def noting_fetch(client: Any, group: str, partitions: Any = None, *rest: Any, **more: Any) -> Any:
        fetched.append(None if partitions is None else len(partitions))
        return fetch(client, group, partitions, *rest, **more)

    monkeypatch.setattr(TransactionClient, "commit_offsets", noting_commit)
    monkeypatch.setattr(TransactionClient, "fetch_offsets", noting_fetch)
    query = pipeline.start(processingTime="0 seconds")
    for number in range(1, 4):
        wait_until(lambda number=number: sum(kafka.group_offsets(pipeline.id, pipeline.source, 50)) >= 49 + number)
        kafka.send(pipeline.source, [b"b"], partition=7)
    wait_until(lambda: kafka.group_offsets(pipeline.id, pipeline.source, 50)[7] == 4)
    query.stop()
    assert committed == [set(range(50)), {0, 7}, {0, 7}, {0, 7}]
    # Twice all of them at the start: who was the last to write, and where the group stands after that one is fenced.
    assert fetched == [None, None, 50, 2, 2, 2]
    assert len(kafka.read(pipeline.target)) == 53
    # Once in an hour all of them are, as otherwise the broker would forget those of idle partitions.
    monkeypatch.setattr(sink, "ALL_OFFSETS_S", 0.0)
    kafka.send(pipeline.source, [b"c"], partition=7)
    pipeline.run()
    assert committed[4:] == [set(range(50))]


def test_keys_of_one_source_partition_keep_their_order(pipeline: Pipeline) -> None:
    pipeline.kafka.send(pipeline.source, [(b"k%d" % (i % 3), b"%04d" % i) for i in range(3000)], partition=0)
    pipeline.options["maxOffsetsPerTrigger"] = "1700"
    pipeline.run()
    for key in (b"k0", b"k1", b"k2"):
        values = [s.value for s in pipeline.kafka.read(pipeline.target) if s.key == key]
        assert values == sorted(values, key=lambda v: v or b"")
        assert len(values) == 1000


def test_a_plain_frame_is_written_whole_in_one_transaction(pipeline: Pipeline, spark: Any) -> None:
    rows = spark.createDataFrame([(f"k{i}", f"v{i}") for i in range(20)], "key string, value string")
    settings = {"bootstrap_servers": pipeline.kafka.servers, "transactional_id": pipeline.id, "topic": pipeline.target}
    written = oncelog.spark.write_batch(rows, **settings)
    assert written is not None
    assert written.records == 20
    assert len(pipeline.kafka.read(pipeline.target)) == 20
    empty = oncelog.spark.write_batch(rows.where("false"), **settings)
    assert empty is not None
    assert empty.records == 0
    assert oncelog.spark.write_batch(rows, **settings, run_id="monday") is not None
    assert oncelog.spark.write_batch(rows, **settings, run_id="monday") is None
    assert oncelog.spark.write_batch(rows, **settings, run_id="tuesday") is not None
    assert len(pipeline.kafka.read(pipeline.target)) == 60


def test_a_failed_plain_write_leaves_nothing_visible(pipeline: Pipeline, spark: Any) -> None:
    rows = spark.createDataFrame([("ok", None), ("bad", 99)], "value string, partition int")
    with pytest.raises(oncelog.spark.RowError, match=r"its topic has no such partition \(topic .*partition 99"):
        oncelog.spark.write_batch(
            rows, bootstrap_servers=pipeline.kafka.servers, transactional_id=pipeline.id, topic=pipeline.target
        )
    assert pipeline.kafka.read(pipeline.target) == []


def test_rows_no_topic_can_take_go_to_the_dead_letters(pipeline: Pipeline, spark: Any, name: Name) -> None:
    kafka = pipeline.kafka
    dead = kafka.create(name("dead"), 2)
    rows = spark.createDataFrame(
        [
            ("a", "good", pipeline.target, None),
            ("b", "lost", None, None),
            ("c", "mismatch", "no-such-topic", None),
            ("d", "beyond", pipeline.target, 7),
            ("e", "x" * 3000, pipeline.target, None),
        ],
        "key string, value string, topic string, partition int",
    )
    oncelog.spark.write_batch(
        rows,
        bootstrap_servers=kafka.servers,
        transactional_id=pipeline.id,
        dead_letter_topic=dead,
        max_request_size=2000,
    )
    assert kafka.values(pipeline.target) == [b"good"]
    letters = {seen.key: (seen.value, dict(seen.headers or [])) for seen in kafka.read(dead)}
    assert {key: value for key, (value, _) in letters.items()} == {
        b"b": b"lost",
        b"c": b"mismatch",
        b"d": b"beyond",
        b"e": None,
    }
    assert letters[b"c"][1]["oncelog.topic"] == b"no-such-topic"
    assert letters[b"d"][1]["oncelog.partition"] == b"7"
    assert b"larger" in letters[b"e"][1]["oncelog.error"]


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ("key string, offset int", {}, "need a column value"),
        ("value string, amount int", {}, "column amount would be lost"),
        ("value int", {}, "column value is int; it must be string or binary"),
        ("value string, partition long", {}, "column partition is bigint; it must be int"),
        ("value string", {"topic": None}, "no topic: give the sink a topic, or the rows a column topic"),
        ("value string", {"topic": "nowhere"}, "topic nowhere does not exist on .*Create it first"),
        ("value string", {"topic": "__consumer_offsets"}, "topic __consumer_offsets is the cluster's own"),
        ("value string", {"transaction_timeout_ms": 9_000_000}, "more than the broker allows: lower it"),
    ],
)
def test_wrong_rows_and_settings_are_explained(
    pipeline: Pipeline, spark: Any, columns: str, settings: dict[str, Any], message: str
) -> None:
    rows = spark.createDataFrame([], columns)
    given = {"bootstrap_servers": pipeline.kafka.servers, "transactional_id": pipeline.id, "topic": pipeline.target}
    with pytest.raises(oncelog.spark.OptionError, match=message):
        oncelog.spark.write_batch(rows, **{**given, **settings})


def test_a_trigger_longer_than_any_transaction_may_be_open_runs(pipeline: Pipeline) -> None:
    """The transaction begins with its batch: how long a query waits between two of them does not matter."""
    pipeline.kafka.send(pipeline.source, [b"a"])
    query = pipeline.start(processingTime="20 minutes")
    while query.isActive and not query.recentProgress:
        query.awaitTermination(0.1)
    query.stop()
    assert query.exception() is None
    assert pipeline.kafka.values(pipeline.target) == [b"a"]


def test_an_unreachable_broker_is_named(pipeline: Pipeline, spark: Any) -> None:
    rows = spark.createDataFrame([("a",)], "value string")
    settings = {"kafka": {"default.api.timeout.ms": "300"}, "batch_attempts": 1}
    with pytest.raises(Exception, match=r"no broker of 127\.0\.0\.1:1 answers"):
        oncelog.spark.write_batch(rows, bootstrap_servers="127.0.0.1:1", transactional_id="x", topic="y", **settings)


def test_bad_rows_of_a_stream_go_to_the_dead_letters_within_the_transaction(pipeline: Pipeline, name: Name) -> None:
    kafka = pipeline.kafka
    dead = kafka.create(name("dead"))
    kafka.send(pipeline.source, [b"good", b"x" * 5000, b"fine"], partition=0)
    pipeline.settings |= {"max_request_size": 2000}
    with pytest.raises(Exception, match="with key, value and headers, it is larger than max_request_size"):
        pipeline.run()
    assert kafka.read(pipeline.target) == []
    pipeline.settings |= {"dead_letter_topic": dead}
    pipeline.run()
    assert kafka.values(pipeline.target) == [b"fine", b"good"]
    assert [dict(seen.headers or [])["oncelog.size_bytes"] for seen in kafka.read(dead)] == [b"5097"]
    found = audit(ClientConfig(bootstrap_servers=kafka.servers), [pipeline.target, dead])
    assert (found.committed, found.torn) == (1, 0)


def test_a_stream_is_not_a_batch(pipeline: Pipeline, spark: Any) -> None:
    with pytest.raises(oncelog.spark.OptionError, match="write_stream takes a streaming DataFrame"):
        pipeline.writer(spark.range(1).selectExpr("cast(id as string) as value"))
    with pytest.raises(oncelog.spark.OptionError, match="write_batch takes a plain DataFrame"):
        oncelog.spark.write_batch(
            pipeline.read(), bootstrap_servers=pipeline.kafka.servers, transactional_id="x", topic="y"
        )


def test_writing_with_the_format_says_which_call_to_use(pipeline: Pipeline, spark: Any) -> None:
    rows = spark.createDataFrame([("a",)], "value string")
    with pytest.raises(Exception, match=r'write\.format\("oncelog"\) does not write.*Use oncelog\.spark\.write_batch'):
        rows.write.format("oncelog").mode("append").save()
    writer = pipeline.read().writeStream.format("oncelog").option("checkpointLocation", pipeline.checkpoint)
    with pytest.raises(
        Exception, match=r'writeStream\.format\("oncelog"\) does not write.*oncelog\.spark\.write_stream'
    ):
        writer.start().awaitTermination(PATIENCE_S)


@pytest.mark.parametrize("trigger", ["continuous", "realTime"])
def test_a_trigger_without_micro_batches_is_refused_with_those_there_are(pipeline: Pipeline, trigger: str) -> None:
    writer = pipeline.writer(pipeline.read().select("value"))
    with pytest.raises(oncelog.spark.OptionError, match=rf"trigger\({trigger}=\.\.\.\).*Use trigger\(processingTime="):
        writer.trigger(**{trigger: "1 second"})


def test_nothing_takes_the_place_of_the_sink_unnoticed(pipeline: Pipeline) -> None:
    writer = pipeline.writer(pipeline.read().select("value"))
    for replace in (
        lambda: writer.format("console"),
        lambda: writer.start(format="console"),
        lambda: writer.foreachBatch(print),
        lambda: writer.foreach(print),
        lambda: writer.toTable("t"),
    ):
        with pytest.raises(oncelog.spark.OptionError, match="would take the place of the exactly-once sink"):
            replace()


def test_wrong_columns_of_a_stream_show_before_it_starts(pipeline: Pipeline) -> None:
    with pytest.raises(oncelog.spark.OptionError, match="column offset would be lost"):
        pipeline.writer(pipeline.read().select("value", "offset"))


def test_an_offset_log_of_another_format_is_refused_by_name(pipeline: Pipeline, spark: Any) -> None:
    setting = "spark.sql.streaming.offsetLog.formatVersion"
    spark.conf.set(setting, "2")
    try:
        with pytest.raises(oncelog.spark.UnsafeSetting, match=f"{setting} is 2"):
            pipeline.start()
    finally:
        spark.conf.unset(setting)


def test_the_broker_gets_no_rows_that_it_would_refuse(pipeline: Pipeline, spark: Any, name: Name) -> None:
    """Each of them would fail its batch, however often that is run."""
    kafka = pipeline.kafka
    dead, compacted = kafka.create(name("dead")), kafka.create(name("table"), cleanup_policy="compact")
    narrow = kafka.create(name("narrow"), max_message_bytes="1000")
    rows = spark.createDataFrame(
        [
            ("good", "v", compacted, []),
            (None, "no key", compacted, []),
            ("a", "internal", "__consumer_offsets", []),
            ("b", "nameless header", pipeline.target, [(None, b"x")]),
            ("c", "no header", pipeline.target, [None]),
            ("d", "long header", pipeline.target, [("h", bytearray(2_000_000))]),
            ("e", "x" * 1_048_570, pipeline.target, []),
            ("f", "x" * 1_048_400, "no-such-topic", []),
            ("g", "x" * 2000, narrow, []),
        ],
        "key string, value string, topic string, headers array<struct<key: string, value: binary>>",
    )
    settings = {"bootstrap_servers": kafka.servers, "transactional_id": pipeline.id}
    oncelog.spark.write_batch(rows, **settings, dead_letter_topic=dead)
    assert kafka.values(compacted) == [b"v"]
    assert kafka.read(pipeline.target) == []
    assert sorted(seen.key or b"" for seen in kafka.read(dead)) == [b"", b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
    with pytest.raises(oncelog.spark.OptionError, match=f"dead_letter_topic: topic {compacted} is compacted"):
        oncelog.spark.write_batch(rows, **settings, dead_letter_topic=compacted)
    with pytest.raises(
        oncelog.spark.OptionError, match=f"dead_letter_topic: topic {narrow} takes no records above 1000"
    ):
        oncelog.spark.write_batch(rows, **settings, dead_letter_topic=narrow)


def test_a_row_larger_than_its_topic_takes_goes_to_the_dead_letters(pipeline: Pipeline, name: Name) -> None:
    kafka = pipeline.kafka
    pipeline.target = kafka.create(name("narrow"), 2, max_message_bytes="1000")
    dead = kafka.create(name("dead"))
    kafka.send(pipeline.source, [b"good", b"x" * 2000, b"fine"], partition=0)
    with pytest.raises(Exception, match=r"larger than its topic takes .*allowed are 1000: raise max\.message\.bytes"):
        pipeline.run()
    pipeline.settings |= {"dead_letter_topic": dead}
    pipeline.run()
    assert kafka.values(pipeline.target) == [b"fine", b"good"]
    assert kafka.values(dead) == [b"x" * 2000]


def test_why_a_task_could_not_write_is_told(
    pipeline: Pipeline, spark: Any, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With task retries on, as they are on clusters: what counts is the first run, not the refusal of the second."""

    async def unseen(_: topic_facts.TopicLookup, names: Collection[str]) -> dict[str, dict[str, str]]:
        return {name: {} for name in names}

    monkeypatch.setattr(topic_facts.TopicLookup, "_describe", unseen)
    narrow = pipeline.kafka.create(name("narrow"), max_message_bytes="1000")
    rows = spark.createDataFrame([("k", "x" * 2000)], "key string, value string")
    settings = {"bootstrap_servers": pipeline.kafka.servers, "transactional_id": pipeline.id, "topic": narrow}
    with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
        oncelog.spark.write_batch(rows, **settings, batch_attempts=1)


def test_a_source_on_another_cluster_is_exactly_once_too(pipeline: Pipeline, name: Name) -> None:
    with broker() as process:
        elsewhere = Kafka(process.bootstrap_servers)
        target = elsewhere.create(name("copy"))

        def run(topic: str | None = target) -> None:
            rows = pipeline.read().selectExpr("value", f"'{target}' as topic")
            writer = oncelog.spark.write_stream(
                rows, bootstrap_servers=elsewhere.servers, transactional_id=pipeline.id, topic=topic
            )
            writer.option("checkpointLocation", pipeline.checkpoint).trigger(
                availableNow=True
            ).start().awaitTermination()

        pipeline.kafka.send(pipeline.source, [b"a", b"b"])
        with pytest.raises(Exception, match=rf"the input \({pipeline.source}\) is not on the sink's cluster"):
            run(topic=None)
        run()
        # Committed there, and not noted by Spark: the batch id tells.
        (Path(pipeline.checkpoint) / "commits" / "0").unlink()
        pipeline.kafka.send(pipeline.source, [b"c"])
        run()
        assert elsewhere.values(target) == [b"a", b"b", b"c"]
        assert elsewhere.group_offsets(pipeline.id, target, 1) == [1]
