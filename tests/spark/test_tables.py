"""Tables that change under a query: joined with a stream, and with state behind the join."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import oncelog.spark
from oncelog.core import failpoints
from tests.connect.postgres import postgres_server
from tests.spark.lakes import DeltaLake, IcebergLake
from tests.spark.pipeline import Pipeline
from tests.spark.test_sink_failures import crash_in_the_sink
from tests.spark.test_state import as_table

pytestmark = pytest.mark.spark

Summed = Callable[[Any], Any]
"""Adds up the amounts of each level, in Spark's state."""


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm_all()


@pytest.fixture
def levels(pipeline: Pipeline, name: Callable[[str], str]) -> str:
    """A topic that says which level each customer has."""
    return pipeline.kafka.create(name("levels"), 2, cleanup_policy="compact")


def level_of_each(pipeline: Pipeline, levels: str, **options: str) -> Any:
    """Each order (key: customer, value: amount) with the level of its customer."""
    table = oncelog.spark.read_table(
        pipeline.spark, bootstrap_servers=pipeline.kafka.servers, topic=levels, options=options
    ).selectExpr("key", "value as level")
    return pipeline.read().select("key", "value").join(table, "key")


def run_sums(pipeline: Pipeline, levels: str, summed: Summed, **options: str) -> None:
    """What was ordered at each level."""
    amounts = level_of_each(pipeline, levels, **options).selectExpr("level", "cast(cast(value as string) as long) as n")
    query = pipeline.writer(summed(amounts)).outputMode("update").trigger(availableNow=True).start()
    query.awaitTermination()


def by_spark(amounts: Any) -> Any:
    return amounts.groupBy("level").sum("n").selectExpr("level as key", "cast(`sum(n)` as string) as value")


def by_pandas(amounts: Any) -> Any:
    def add(level: Any, frames: Any, state: Any) -> Any:
        import pandas as pd

        total = (state.get[0] if state.exists else 0) + sum(int(frame["n"].sum()) for frame in frames)
        state.update((total,))
        yield pd.DataFrame({"key": [bytes(level[0])], "value": [str(total)]})

    grouped = amounts.groupBy("level")
    return grouped.applyInPandasWithState(add, "key binary, value string", "total long", "update", "NoTimeout")


def by_a_processor(amounts: Any) -> Any:
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Sum(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._total = handle.getValueState("total", "total long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N803  # Spark's names
            before = self._total.get()[0] if self._total.exists() else 0
            total = before + sum(int(row["n"]) for row in rows)
            self._total.update((total,))
            yield Row(key=bytes(key[0]), value=str(total))

        def close(self) -> None:
            pass

    return amounts.groupBy("level").transformWithState(Sum(), "key binary, value string", "update", "none")


def test_a_table_is_as_new_as_the_batch_it_is_joined_with(pipeline: Pipeline, levels: str) -> None:
    pipeline.kafka.send(levels, [(b"c", b"gold")])
    rows = level_of_each(pipeline, levels).selectExpr("key", "concat(value, level) as value")
    pipeline.kafka.send(pipeline.source, [(b"c", b"1")])
    query = pipeline.start(rows, processingTime="0 seconds")
    query.processAllAvailable()
    pipeline.kafka.send(levels, [(b"c", b"silver")])
    pipeline.kafka.send(pipeline.source, [(b"c", b"2")])
    query.processAllAvailable()
    query.stop()
    assert pipeline.kafka.values(pipeline.target) == [b"1gold", b"2silver"]


@pytest.mark.parametrize("summed", [by_spark, by_pandas, by_a_processor])
def test_a_table_that_changed_before_a_batch_is_run_again_does_not_part_state_from_output(
    pipeline: Pipeline, levels: str, summed: Summed, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = pipeline.kafka
    kafka.send(levels, [(b"c", b"gold")])
    kafka.send(pipeline.source, [(b"c", b"10")])
    crash_in_the_sink(monkeypatch, "after_commit", 1)
    with pytest.raises(Exception, match="SimulatedCrash"):
        run_sums(pipeline, levels, summed)
    failpoints.disarm_all()
    assert as_table(pipeline) == {b"gold": 10}
    kafka.send(levels, [(b"c", b"silver")])
    with pytest.raises(Exception, match="a topic that the query reads as a table has changed since") as refused:
        run_sums(pipeline, levels, summed)
    run_sums(pipeline, levels, summed, endingOffsets=told_ends(refused.value, levels))
    kafka.send(pipeline.source, [(b"c", b"5")])
    run_sums(pipeline, levels, summed)
    assert as_table(pipeline) == {b"gold": 10, b"silver": 5}


def told_ends(refused: BaseException, levels: str) -> str:
    """The message says how to go on: once with the table as it was."""
    told = re.search(r"'endingOffsets': '(.*?)'", str(refused))
    assert told is not None
    ends = {str(partition): 0 for partition in range(2)} | json.loads(told[1])[levels]
    return json.dumps({levels: ends})


class Target:
    """A table outside of the log that sums are written to."""

    committed = "spark.lake.committed"

    def write(self, sums: Any) -> Any:
        raise NotImplementedError

    def rows(self) -> list[tuple[str, int]]:
        raise NotImplementedError


class PostgresTarget(Target):
    committed = "spark.postgres.committed"

    def __init__(self, url: str) -> None:
        self._url = url
        self._execute("create table sums (level text, total bigint)")

    def write(self, sums: Any) -> Any:
        return oncelog.spark.write_stream_to_postgres(sums, url=self._url, table="sums", sink="sums")

    def rows(self) -> list[tuple[str, int]]:
        return self._execute("select level, total from sums order by total")

    def _execute(self, sql: str) -> list[Any]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []


class LakeTarget(Target):
    def __init__(self, lake: DeltaLake | IcebergLake) -> None:
        self._lake = lake

    def write(self, sums: Any) -> Any:
        return self._lake.write(sums, sink="sums")

    def rows(self) -> list[tuple[str, int]]:
        return sorted(((row["level"], row["total"]) for row in self._lake.rows()), key=lambda row: row[1])


@pytest.fixture(params=["postgres", "delta", pytest.param("iceberg", marks=pytest.mark.long)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    if request.param == "postgres":
        with postgres_server() as server:
            yield PostgresTarget(server.create_database(f"sums-{uuid.uuid4().hex[:8]}"))
    else:
        yield LakeTarget(DeltaLake(tmp_path) if request.param == "delta" else IcebergLake(tmp_path))


def test_a_table_that_is_joined_on_the_way_to_another_is_as_new_as_the_batch(
    pipeline: Pipeline, levels: str, target: Target
) -> None:
    pipeline.kafka.send(levels, [(b"c", b"gold")])
    rows = level_of_each(pipeline, levels)
    rows = rows.selectExpr("cast(level as string) as level", "cast(cast(value as string) as long) as total")
    pipeline.kafka.send(pipeline.source, [(b"c", b"1")])
    writer = target.write(rows).option("checkpointLocation", pipeline.checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    pipeline.kafka.send(levels, [(b"c", b"silver")])
    pipeline.kafka.send(pipeline.source, [(b"c", b"2")])
    query.processAllAvailable()
    query.stop()
    assert target.rows() == [("gold", 1), ("silver", 2)]


def run_sums_into(target: Target, pipeline: Pipeline, levels: str, **options: str) -> None:
    amounts = level_of_each(pipeline, levels, **options).selectExpr("level", "cast(cast(value as string) as long) as n")
    sums = amounts.groupBy("level").sum("n").selectExpr("cast(level as string) as level", "`sum(n)` as total")
    writer = target.write(sums).option("checkpointLocation", pipeline.checkpoint).outputMode("update")
    writer.trigger(availableNow=True).start().awaitTermination()


def die() -> None:
    raise RuntimeError("the driver is gone")


def test_state_and_a_table_outside_of_the_log_do_not_part_when_the_joined_table_changed(
    pipeline: Pipeline, levels: str, target: Target
) -> None:
    kafka = pipeline.kafka
    kafka.send(levels, [(b"c", b"gold")])
    kafka.send(pipeline.source, [(b"c", b"10")])
    failpoints.arm(target.committed, die)
    with pytest.raises(Exception, match="the driver is gone"):
        run_sums_into(target, pipeline, levels)
    failpoints.disarm_all()
    assert target.rows() == [("gold", 10)]
    kafka.send(levels, [(b"c", b"silver")])
    with pytest.raises(Exception, match="a topic that the query reads as a table has changed since") as refused:
        run_sums_into(target, pipeline, levels)
    run_sums_into(target, pipeline, levels, endingOffsets=told_ends(refused.value, levels))
    kafka.send(pipeline.source, [(b"c", b"5")])
    run_sums_into(target, pipeline, levels)
    assert target.rows() == [("silver", 5), ("gold", 10)]


def test_state_of_an_attempt_that_failed_is_replaced_by_that_of_the_next(
    pipeline: Pipeline, levels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are there already when the batch is run again, with another table."""
    pipeline.kafka.send(levels, [(b"c", b"gold")])
    pipeline.kafka.send(pipeline.source, [(b"c", b"10")])
    crash_in_the_sink(monkeypatch, "before_commit", 1)
    with pytest.raises(Exception, match="SimulatedCrash"):
        run_sums(pipeline, levels, by_spark)
    failpoints.disarm_all()
    pipeline.kafka.send(levels, [(b"c", b"silver")])
    run_sums(pipeline, levels, by_spark)
    pipeline.kafka.send(pipeline.source, [(b"c", b"5")])
    run_sums(pipeline, levels, by_spark)
    assert as_table(pipeline) == {b"silver": 15}


def test_a_table_that_did_not_change_lets_a_batch_run_again(
    pipeline: Pipeline, levels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.kafka.send(levels, [(b"c", b"gold")])
    pipeline.kafka.send(pipeline.source, [(b"c", b"10")])
    crash_in_the_sink(monkeypatch, "after_commit", 1)
    with pytest.raises(Exception, match="SimulatedCrash"):
        run_sums(pipeline, levels, by_spark)
    failpoints.disarm_all()
    pipeline.kafka.send(pipeline.source, [(b"c", b"5")])
    run_sums(pipeline, levels, by_spark)
    assert as_table(pipeline) == {b"gold": 15}
