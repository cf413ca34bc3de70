"""Aggregations, joins and tables on RocksDB state, through the exactly-once sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import oncelog.spark
from oncelog.core import failpoints
from oncelog.spark import snapshot
from oncelog.spark.snapshot import latest_per_key
from oncelog.spark.transactor import Transactor
from tests.spark.brokers import on_every_broker
from tests.spark.pipeline import Pipeline

pytestmark = pytest.mark.spark

WORDS = [b"a", b"b", b"a", b"c", b"a", b"b"] * 10


def counts(pipeline: Pipeline, rebuilt: bool = False) -> Any:
    """How often each key came, as (key, value) rows of a changelog."""
    ones = pipeline.read().selectExpr("key", "1L as n")
    if rebuilt:
        reader = pipeline.spark.readStream.format("oncelog").option("kafka.bootstrap.servers", pipeline.kafka.servers)
        before = reader.option("subscribe", pipeline.target).option("snapshot", "true").load()
        ones = ones.union(before.selectExpr("key", "cast(cast(value as string) as long) as n"))
    return ones.groupBy("key").sum("n").selectExpr("key", "cast(`sum(n)` as string) as value")


def run_counts(pipeline: Pipeline, frame: Any) -> Any:
    query = pipeline.writer(frame).outputMode("update").trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def as_table(pipeline: Pipeline) -> dict[bytes, int]:
    rows = oncelog.spark.read_table(
        pipeline.spark, bootstrap_servers=pipeline.kafka.servers, topic=pipeline.target
    ).collect()
    return {bytes(row.key): int(row.value) for row in rows}


@pytest.fixture
def counted(pipeline: Pipeline) -> Pipeline:
    pipeline.kafka.send(pipeline.source, [(word, b"") for word in WORDS])
    pipeline.options["maxOffsetsPerTrigger"] = "25"
    return pipeline


def test_an_aggregation_survives_a_crash_at_every_step(counted: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the drained batch after `after_commit`: a query that keeps state dies when a batch is not run at all."""

    def die(self: Transactor, identity: Any, what: str, error: Exception) -> None:
        raise error

    def crash() -> None:
        raise RuntimeError("simulated crash")

    for point in ("before_commit", "after_commit"):
        failpoints.arm(f"spark.sink.{point}", failpoints.on_nth_hit(1, crash))
        with monkeypatch.context() as patched:
            patched.setattr(Transactor, "_recover", die)
            with pytest.raises(Exception, match="simulated crash"):
                run_counts(counted, counts(counted))
        failpoints.disarm_all()
    run_counts(counted, counts(counted))
    assert as_table(counted) == dict(Counter(WORDS))
    provider = counted.spark.conf.get("spark.sql.streaming.stateStore.providerClass")
    assert provider.endswith("RocksDBStateStoreProvider")


@on_every_broker
def test_state_lost_with_its_checkpoint_is_rebuilt_from_the_changelog(counted: Pipeline, tmp_path: Path) -> None:
    run_counts(counted, counts(counted, rebuilt=True))
    assert as_table(counted) == dict(Counter(WORDS))
    counted.kafka.send(counted.source, [(word, b"") for word in WORDS])
    counted.checkpoint = str(tmp_path / "rebuilt")
    counted.options |= {"startingOffsets": "committed", "kafka.group.id": counted.id}
    run_counts(counted, counts(counted, rebuilt=True))
    assert as_table(counted) == dict(Counter(WORDS * 2))
    counted.kafka.send(counted.source, [(b"c", b"")])
    run_counts(counted, counts(counted, rebuilt=True))
    assert as_table(counted) == dict(Counter([*WORDS, *WORDS, b"c"]))


def test_two_streams_are_joined_once(pipeline: Pipeline, name: Callable[[str], str]) -> None:
    other = pipeline.kafka.create(name("other"), 2)
    pipeline.kafka.send(pipeline.source, [(b"%d" % i, b"left%d" % i) for i in range(20)])
    pipeline.kafka.send(other, [(b"%d" % i, b"right%d" % i) for i in range(10, 30)])
    left = pipeline.read().selectExpr("key", "value as left", "timestamp as at").withWatermark("at", "1 minute")
    reader = pipeline.spark.readStream.format("oncelog").option("kafka.bootstrap.servers", pipeline.kafka.servers)
    right = reader.options(subscribe=other, startingOffsets="earliest").load()
    right = right.selectExpr("key as other", "value as right", "timestamp as then").withWatermark("then", "1 minute")
    condition = "key = other and then between at - interval 1 hour and at + interval 1 hour"
    from pyspark.sql import functions as sf

    joined = left.join(right, sf.expr(condition))
    pipeline.run(joined.selectExpr("key", "concat(left, right) as value"))
    assert pipeline.kafka.values(pipeline.target) == sorted(b"left%dright%d" % (i, i) for i in range(10, 20))
    assert sum(pipeline.kafka.group_offsets(pipeline.id, pipeline.source, 2)) == 20
    assert sum(pipeline.kafka.group_offsets(pipeline.id, other, 2)) == 20


def test_a_table_holds_the_latest_value_of_each_key(pipeline: Pipeline) -> None:
    topic = pipeline.target
    pipeline.kafka.send(topic, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (None, b"no key")])
    pipeline.kafka.send(topic, [{"key": b"b", "value": None}])
    assert as_table(pipeline) == {b"a": 3, b"c": 4}


def test_the_latest_value_is_found_across_batches() -> None:
    batches = [
        pa.RecordBatch.from_pydict(
            {"key": keys, "value": values}, schema=pa.schema([("key", pa.binary()), ("value", pa.binary())])
        )
        for keys, values in [
            ([b"a", b"b", None, b"a"], [b"1", b"2", b"x", b"3"]),
            ([b"b", b"c"], [None, b"4"]),
        ]
    ]
    rows = [row for batch in latest_per_key(iter(batches)) for row in batch.to_pylist()]
    assert sorted((row["key"], row["value"]) for row in rows) == [(b"a", b"3"), (b"c", b"4")]
    assert list(latest_per_key(iter([]))) == []


def test_the_latest_values_of_a_partition_may_be_larger_than_a_column_of_arrow() -> None:
    """More than 2 GiB of zeros, which are all the same memory."""
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    size_bytes = 20_000_000
    place = pa.py_buffer(np.array([0, size_bytes], np.int32))
    zeros = pa.Array.from_buffers(pa.binary(), 1, [None, place, pa.py_buffer(np.zeros(size_bytes, np.uint8))])
    batches = [pa.RecordBatch.from_arrays([pa.array([b"%d" % (n % 8)]), zeros], schema=schema) for n in range(120)]
    found = list(latest_per_key(iter(batches)))
    assert sorted(key for batch in found for key in batch.column("key").to_pylist()) == [b"%d" % n for n in range(8)]
    assert max(batch.nbytes for batch in found) < 4 * size_bytes


def test_the_work_of_a_snapshot_grows_with_its_keys_and_not_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    honest = snapshot._latest

    def counting(rows: pa.Table) -> pa.Table:
        looked_at.append(rows.num_rows)
        return honest(rows)

    monkeypatch.setattr(snapshot, "_latest", counting)
    monkeypatch.setattr(snapshot, "ROWS_PER_BATCH", 10)
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    batches = [
        pa.RecordBatch.from_pydict({"key": [b"%d" % n for n in range(i, i + 10)], "value": [b"v"] * 10}, schema=schema)
        for i in range(0, 10_000, 10)
    ]
    assert sum(batch.num_rows for batch in latest_per_key(iter(batches))) == 10_000
    assert sum(looked_at) <= 4 * 10_000
