"""Topics as a stream and as a table."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncelog.client.connection import Connection
from oncelog.spark.source import TopicStreamReader
from oncelog.spark.source_options import parse_source_options
from oncelog.spark.topic_plan import DataLost
from oncelog.testing import broker
from tests.spark.kafka import Kafka
from tests.spark.pipeline import forget_the_beginning
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

Name = Callable[[str], str]


def table(spark: Any, kafka: Kafka, **options: str) -> Any:
    reader = spark.read.format("oncelog").option("kafka.bootstrap.servers", kafka.servers)
    return reader.options(**options).load()


def stream(spark: Any, kafka: Kafka, **options: str) -> Any:
    reader = spark.readStream.format("oncelog").option("kafka.bootstrap.servers", kafka.servers)
    return reader.options(**{"startingOffsets": "earliest", **options}).load()


def run_all(frame: Any, checkpoint: str) -> list[tuple[int, list[Any]]]:
    """Run an AvailableNow query to its end: the rows of each batch."""
    batches: list[tuple[int, list[Any]]] = []
    writer = frame.writeStream.foreachBatch(lambda rows, number: batches.append((number, rows.collect())))
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    return batches


def values(rows: list[Any]) -> list[bytes]:
    return sorted(bytes(row.value) for row in rows)


def test_rows_have_the_columns_of_sparks_kafka_source(spark: Any, kafka: Kafka, name: Name) -> None:
    topic = kafka.create(name("t"))
    kafka.send(
        topic, [{"key": b"k", "value": b"v", "timestamp": 1_700_000_000_123, "headers": [("h", b"1"), ("n", None)]}]
    )
    kafka.send(topic, [{"value": None, "key": b"gone"}])
    frame = table(spark, kafka, subscribe=topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    first, second = frame.orderBy("offset").collect()
    assert (first.key, first.value, first.topic, first.partition, first.offset) == (b"k", b"v", topic, 0, 0)
    assert first.timestamp.timestamp() == pytest.approx(1_700_000_000.123)
    assert first.timestampType == 0
    assert [(h.key, h.value) for h in first.headers] == [("h", b"1"), ("n", None)]
    assert (second.key, second.value, second.headers) == (b"gone", None, None)
    assert "headers" not in table(spark, kafka, subscribe=topic).columns


def test_the_columns_do_not_depend_on_what_a_session_calls_a_timestamp(spark: Any, kafka: Kafka, name: Name) -> None:
    topic = kafka.create(name("t"))
    kafka.send(topic, [{"value": b"a", "timestamp": 1_000}])
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        rows = table(spark, kafka, subscribe=topic)
        assert dict(rows.dtypes)["timestamp"] == "timestamp"
        assert [row.at for row in rows.selectExpr("unix_millis(timestamp) as at").collect()] == [1_000]
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_aborted_records_are_not_seen_unless_asked_for(spark: Any, kafka: Kafka, name: Name) -> None:
    topic = kafka.create(name("t"))
    kafka.send_in_transaction(topic, [b"a", b"b"], commit=True)
    kafka.send_in_transaction(topic, [b"no"], commit=False)
    kafka.send_in_transaction(topic, [b"c"], commit=True)
    kafka.send_in_transaction(topic, [b"never"], commit=False)
    assert values(table(spark, kafka, subscribe=topic).collect()) == [b"a", b"b", b"c"]
    dirty = table(spark, kafka, subscribe=topic, **{"kafka.isolation.level": "read_uncommitted"})
    assert values(dirty.collect()) == [b"a", b"b", b"c", b"never", b"no"]


def test_offsets_times_and_partitions_choose_what_a_table_holds(spark: Any, kafka: Kafka, name: Name) -> None:
    topic = kafka.create(name("t"), 2)
    for partition in range(2):
        records = [{"value": b"%d-%d" % (partition, i), "timestamp": 1000 * (i + 1)} for i in range(10)]
        kafka.send(topic, records, partition=partition)
    by_offset = table(
        spark,
        kafka,
        subscribe=topic,
        startingOffsets=json.dumps({topic: {"0": 8, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": -1, "1": 1}}),
    )
    assert values(by_offset.collect()) == [b"0-8", b"0-9", b"1-0"]
    by_time = table(spark, kafka, subscribe=topic, startingTimestamp="9000", endingTimestamp="10000")
    assert values(by_time.collect()) == [b"0-8", b"1-8"]
    each = json.dumps({topic: {"0": 10_000, "1": 3000}})
    end = json.dumps({topic: {"0": 99_999, "1": 4000}})
    by_times = table(spark, kafka, subscribe=topic, startingOffsetsByTimestamp=each, endingOffsetsByTimestamp=end)
    assert values(by_times.collect()) == [b"0-9", b"1-2"]
    assigned = table(spark, kafka, assign=json.dumps({topic: [1]}), startingOffsets=json.dumps({topic: {"1": 9}}))
    assert values(assigned.collect()) == [b"1-9"]


def test_a_time_after_the_last_record_is_an_error_or_the_end(spark: Any, kafka: Kafka, name: Name) -> None:
    topic = kafka.create(name("t"))
    kafka.send(topic, [{"value": b"old", "timestamp": 1000}])
    with pytest.raises(Exception, match=r"has no record at or after 5000.*startingOffsetsByTimestampStrategy"):
        table(spark, kafka, subscribe=topic, startingTimestamp="5000").collect()
    options = {"startingTimestamp": "5000", "startingOffsetsByTimestampStrategy": "latest"}
    assert table(spark, kafka, subscribe=topic, **options).collect() == []


def test_a_stream_starts_where_it_is_told(spark: Any, kafka: Kafka, name: Name, checkpoint: str) -> None:
    topic = kafka.create(name("t"), 2)
    for partition in range(2):
        kafka.send(topic, [b"%d-%d" % (partition, i) for i in range(5)], partition=partition)
    batches = run_all(
        stream(spark, kafka, subscribe=topic, startingOffsets=json.dumps({topic: {"0": 3, "1": -1}})), checkpoint
    )
    assert values(batches[0][1]) == [b"0-3", b"0-4"]


def test_a_pattern_finds_topics_and_an_empty_topic_is_an_empty_table(spark: Any, kafka: Kafka, name: Name) -> None:
    one, two, other = kafka.create(name("p-a")), kafka.create(name("p-b")), kafka.create(name("x"))
    assert table(spark, kafka, subscribe=one).count() == 0
    for topic in (one, two, other):
        kafka.send(topic, [topic.encode()])
    pattern = "p-[ab]-" + one.rsplit("-", 1)[1]
    assert values(table(spark, kafka, subscribePattern=pattern).collect()) == sorted([one.encode(), two.encode()])


def test_large_partitions_are_split_into_tasks_without_losing_a_row(spark: Any, kafka: Kafka, name: Name) -> None:
    topic = kafka.create(name("t"))
    kafka.send(topic, [b"%05d" % i for i in range(2000)])
    frame = table(spark, kafka, subscribe=topic, minPartitions="3")
    assert frame.rdd.getNumPartitions() == 3
    assert values(frame.collect()) == [b"%05d" % i for i in range(2000)]
    assert table(spark, kafka, subscribe=topic, maxRecordsPerPartition="500").rdd.getNumPartitions() == 4


def test_a_stream_is_read_in_limited_batches_up_to_what_was_there(
    spark: Any, kafka: Kafka, name: Name, checkpoint: str
) -> None:
    topic = kafka.create(name("t"), 2)
    kafka.send(topic, [b"%03d" % i for i in range(50)], partition=0)
    kafka.send(topic, [b"%03d" % i for i in range(50, 100)], partition=1)
    batches = run_all(stream(spark, kafka, subscribe=topic, maxOffsetsPerTrigger="40"), checkpoint)
    assert [len(rows) for _, rows in batches] == [40, 40, 20]
    assert values([row for _, rows in batches for row in rows]) == [b"%03d" % i for i in range(100)]
    kafka.send(topic, [b"late"], partition=1)
    again = run_all(stream(spark, kafka, subscribe=topic, maxOffsetsPerTrigger="40"), checkpoint)
    assert [(number, values(rows)) for number, rows in again] == [(3, [b"late"])]


def test_progress_tells_offsets_in_kafkas_json(spark: Any, kafka: Kafka, name: Name, checkpoint: str) -> None:
    topic = kafka.create(name("t"))
    kafka.send(topic, [b"a", b"b", b"c"])
    writer = stream(spark, kafka, subscribe=topic).writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    source = json.loads(query.lastProgress.json)["sources"][0]
    assert source["endOffset"][topic] == {"0": 3}
    assert source["latestOffset"] == {topic: {"0": 3}}
    assert source["numInputRows"] == 3


def test_partitions_added_while_running_are_read_from_their_beginning(
    spark: Any, kafka: Kafka, name: Name, checkpoint: str
) -> None:
    topic = kafka.create(name("t"), 1)
    kafka.send(topic, [b"a"])
    seen: list[Any] = []
    writer = stream(spark, kafka, subscribe=topic).writeStream.foreachBatch(lambda rows, _: seen.extend(rows.collect()))
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="100 milliseconds").start()
    wait_until(lambda: len(seen) == 1)
    kafka.grow(topic, 3)
    kafka.send(topic, [b"b"], partition=2)
    wait_until(lambda: len(seen) == 2)
    query.stop()
    assert values(seen) == [b"a", b"b"]


def test_topics_that_come_to_match_a_pattern_are_read_from_their_beginning(
    spark: Any, kafka: Kafka, name: Name, checkpoint: str
) -> None:
    first = kafka.create(name("m-1"))
    kafka.send(first, [b"a"])
    pattern = "m-[12]-" + first.rsplit("-", 1)[1]
    assert values(run_all(stream(spark, kafka, subscribePattern=pattern), checkpoint)[0][1]) == [b"a"]
    kafka.send(kafka.create(name("m-2")), [b"b"])
    assert values(run_all(stream(spark, kafka, subscribePattern=pattern), checkpoint)[0][1]) == [b"b"]


def test_gaps_that_compaction_left_are_stepped_over(spark: Any, name: Name, checkpoint: str) -> None:
    with broker({"log.cleaner.backoff.ms": 100}) as process:
        kafka = Kafka(process.bootstrap_servers)
        config = {"cleanup_policy": "compact", "internal_segment_bytes": "1000", "min_cleanable_dirty_ratio": "0.01"}
        topic = kafka.create(name("t"), **config)
        for i in range(40):
            kafka.send(topic, [(b"k%d" % (i % 3), b"%03d" % (i * 10 + j)) for j in range(10)])
        wait_until(lambda: len(kafka.read(topic)) < 100)

        def check(read: Callable[[], list[bytes]]) -> None:
            """The cleaner may be at work still."""
            before = kafka.values(topic)
            found = read()
            assert set(kafka.values(topic)) <= set(found) <= set(before)
            assert len(found) == len(set(found))

        batches: list[tuple[int, list[Any]]] = []

        def read_stream() -> list[bytes]:
            batches.extend(run_all(stream(spark, kafka, subscribe=topic, maxOffsetsPerTrigger="90"), checkpoint))
            return values([row for _, rows in batches for row in rows])

        check(read_stream)
        assert min(len(rows) for _, rows in batches) == 0
        check(lambda: values(table(spark, kafka, subscribe=topic, minPartitions="5").collect()))


def test_a_batch_waits_for_enough_input_but_not_for_ever(kafka: Kafka, name: Name) -> None:
    from pyspark.sql.streaming.datasource import ReadMinRows

    topic = kafka.create(name("t"))
    kafka.send(topic, [b"a", b"b"])
    given = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic, "startingOffsets": "earliest"}
    options = parse_source_options({**given, "minOffsetsPerTrigger": "3", "maxTriggerDelay": "1h"}, streaming=True)
    reader = TopicStreamReader(options)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(3)
    start = reader.latestOffset(reader.initialOffset(), limit)
    assert start[topic] == {"0": 2}, "what is there at the start may have waited for long already"
    kafka.send(topic, [b"c", b"d"])
    assert reader.latestOffset(start, limit) == start
    kafka.send(topic, [b"e"])
    end = reader.latestOffset(start, limit)
    assert end[topic] == {"0": 5}
    kafka.send(topic, [b"f"])
    assert reader.latestOffset(end, limit) == end
    reader._last_batch_s -= 3600
    assert reader.latestOffset(end, limit)[topic] == {"0": 6}


def test_lost_data_stops_the_query_unless_it_may_go_on(spark: Any, kafka: Kafka, name: Name, checkpoint: str) -> None:
    topic = kafka.create(name("t"))
    kafka.send(topic, [b"a"])
    run_all(stream(spark, kafka, subscribe=topic), checkpoint)
    kafka.send(topic, [b"b", b"c", b"d"])
    kafka.delete_records(topic, 0, 3)
    with pytest.raises(Exception, match=r"offsets 1 to 3 are deleted already.*failOnDataLoss"):
        run_all(stream(spark, kafka, subscribe=topic), checkpoint)
    batches = run_all(stream(spark, kafka, subscribe=topic, failOnDataLoss="false"), checkpoint)
    assert values([row for _, rows in batches for row in rows]) == [b"d"]


@pytest.mark.parametrize("before", [40, 100], ids=["some", "all"])
def test_records_that_go_while_a_batch_runs_stop_the_query_unless_it_may_go_on(
    spark: Any, kafka: Kafka, name: Name, checkpoint: str, before: int
) -> None:
    topic = kafka.create(name("t"))
    kafka.send(topic, [b"%03d" % i for i in range(100)])
    seen: list[Any] = []

    def run(**options: str) -> None:
        def lose_and_read(rows: Any, _: int) -> None:
            kafka.delete_records(topic, 0, before)
            seen.extend(rows.collect())

        writer = stream(spark, kafka, subscribe=topic, **options).writeStream.foreachBatch(lose_and_read)
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match=rf"{topic}-0: offsets 0 to {before} went while the batch was running"):
        run()
    Path(checkpoint).rename(f"{checkpoint}-failed")
    kafka.delete(topic)
    kafka.create(topic)
    kafka.send(topic, [b"%03d" % i for i in range(100)])
    run(failOnDataLoss="false")
    assert values(seen) == [b"%03d" % i for i in range(before, 100)]


@pytest.mark.parametrize("records", [1, 150], ids=["shorter", "longer"])
def test_a_recreated_topic_stops_the_query_unless_it_may_go_on(
    spark: Any, kafka: Kafka, name: Name, checkpoint: str, records: int
) -> None:
    topic = kafka.create(name("t"))
    kafka.send(topic, [b"old"] * 100)
    run_all(stream(spark, kafka, subscribe=topic), checkpoint)
    kafka.delete(topic)
    kafka.create(topic)
    kafka.send(topic, [b"new"] * records)
    with pytest.raises(Exception, match=rf"topic {topic} was deleted and created again"):
        run_all(stream(spark, kafka, subscribe=topic), checkpoint)
    batches = run_all(stream(spark, kafka, subscribe=topic, failOnDataLoss="false"), checkpoint)
    assert values([row for _, rows in batches for row in rows]) == [b"new"] * records


def test_a_topic_that_is_created_again_between_two_batches_of_one_trigger_is_noticed(kafka: Kafka, name: Name) -> None:
    """`availableNow` decides at its start where it ends, and that of another topic says nothing."""
    topic = kafka.create(name("t"))
    kafka.send(topic, [b"old"] * 100)
    given = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic, "startingOffsets": "earliest"}
    reader = TopicStreamReader(parse_source_options({**given, "maxOffsetsPerTrigger": "50"}, streaming=True))
    limit = reader.getDefaultReadLimit()
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset(reader.initialOffset(), limit)
    kafka.send(topic, [b"not in this trigger"])
    second = reader.latestOffset(first, limit)
    assert (first[topic], second[topic]) == ({"0": 50}, {"0": 100})
    assert reader.latestOffset(second, limit) == second
    kafka.delete(topic)
    kafka.create(topic)
    kafka.send(topic, [b"new"] * 150)
    with pytest.raises(DataLost, match=rf"topic {topic} was deleted and created again"):
        reader.latestOffset(first, limit)


def test_a_topic_that_lost_its_log_stops_the_query(spark: Any, kafka: Kafka, name: Name, checkpoint: str) -> None:
    """As far as that shows without the topic's id, in the checkpoint of an earlier version."""
    topic = kafka.create(name("t"))
    kafka.send(topic, [b"a", b"b"])
    run_all(stream(spark, kafka, subscribe=topic), checkpoint)
    forget_the_beginning(checkpoint, 0)
    kafka.delete(topic)
    kafka.create(topic)
    kafka.send(topic, [b"c"])
    with pytest.raises(Exception, match="ends at 1, before offset 2 where the stream is"):
        run_all(stream(spark, kafka, subscribe=topic), checkpoint)


def test_aborted_records_and_markers_at_the_end_of_a_range_do_not_stall(
    spark: Any, kafka: Kafka, name: Name, checkpoint: str
) -> None:
    topic = kafka.create(name("t"))
    kafka.send(topic, [b"a"])
    kafka.send_in_transaction(topic, [b"no"] * 3, commit=False)
    kafka.send_in_transaction(topic, [b"yes"], commit=True)
    batches = run_all(stream(spark, kafka, subscribe=topic, maxOffsetsPerTrigger="2"), checkpoint)
    assert values([row for _, rows in batches for row in rows]) == [b"a", b"yes"]


def test_a_missing_topic_is_named(spark: Any, kafka: Kafka, name: Name) -> None:
    with pytest.raises(Exception, match=r"topic nowhere-.* does not exist.*create it"):
        table(spark, kafka, subscribe=name("nowhere")).collect()


def test_an_unreachable_broker_is_named(spark: Any) -> None:
    reader = spark.read.format("oncelog").option("kafka.bootstrap.servers", "127.0.0.1:1").option("subscribe", "t")
    with pytest.raises(Exception, match=r"no broker of 127\.0\.0\.1:1 answers"):
        reader.option("kafka.default.api.timeout.ms", "300").load().collect()


def test_a_wrong_option_reaches_the_user(spark: Any, kafka: Kafka) -> None:
    with pytest.raises(Exception, match=r"config name: subscibe; did you mean subscribe\?"):
        table(spark, kafka, subscibe="t").collect()


def test_committed_starts_where_the_group_stands(spark: Any, kafka: Kafka, name: Name, checkpoint: str) -> None:
    topic, group = kafka.create(name("t"), 2), name("g")
    kafka.send(topic, [b"0-%d" % i for i in range(4)], partition=0)
    kafka.send(topic, [b"1-%d" % i for i in range(4)], partition=1)
    kafka.commit(group, topic, {0: 3})
    options = {"kafka.group.id": group, "startingOffsets": "committed"}
    batches = run_all(stream(spark, kafka, subscribe=topic, **options), checkpoint)
    assert values(batches[0][1]) == [b"0-3", b"1-0", b"1-1", b"1-2", b"1-3"]


def test_a_thousand_partitions_are_planned_in_less_than_a_second_with_few_requests(
    kafka: Kafka, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this process's time: how long the broker takes depends on what else the machine has to do."""
    requests: Counter[str] = Counter()
    call = Connection.call

    async def counted(self: Connection, request: Any, *rest: Any, **more: Any) -> Any:
        requests[type(request).__name__] += 1
        return await call(self, request, *rest, **more)

    topic = kafka.create(name("thousand"), 1000)
    some = [{"value": b"a", "partition": number} for number in range(0, 1000, 20)]
    kafka.send(topic, some)
    given = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic, "startingOffsets": "earliest"}
    reader = TopicStreamReader(parse_source_options(given, streaming=True))
    limit = reader.getDefaultReadLimit()
    at = reader.initialOffset()
    monkeypatch.setattr(Connection, "call", counted)
    for _ in range(2):
        requests.clear()
        began_s = time.process_time()
        end = reader.latestOffset(at, limit)
        tasks: list[Any] = list(reader.partitions(at, end))
        assert time.process_time() - began_s < 1
        assert requests.total() < 50, requests
        assert len(end[topic]) == 1000
        assert sum(one.size for task in tasks for one in task.ranges) == len(some)
        at = end
        kafka.send(topic, some)


def test_small_ranges_of_many_partitions_are_read_by_few_tasks(
    spark: Any, kafka: Kafka, name: Callable[[str], str]
) -> None:
    topic = kafka.create(name("wide"), 200)
    kafka.send(topic, [{"value": b"%03d" % number, "partition": number} for number in range(200)])
    reader = spark.read.format("oncelog").option("kafka.bootstrap.servers", kafka.servers)
    rows = reader.option("subscribe", topic).load()
    assert rows.rdd.getNumPartitions() == 2
    assert sorted(bytes(row.value) for row in rows.collect()) == [b"%03d" % number for number in range(200)]
    alone = reader.options(subscribe=topic, minPartitions="200").load()
    assert alone.rdd.getNumPartitions() == 200
