"""Tables that change under a query: joined with a stream, and with state behind the join."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import oncelog.spark
from oncelog.core import failpoints
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
    # The message says how to go on: once with the table as it was.
    told = re.search(r"'endingOffsets': '(.*?)'", str(refused.value))
    assert told is not None
    ends = {str(partition): 0 for partition in range(2)} | json.loads(told[1])[levels]
    run_sums(pipeline, levels, summed, endingOffsets=json.dumps({levels: ends}))
    kafka.send(pipeline.source, [(b"c", b"5")])
    run_sums(pipeline, levels, summed)
    assert as_table(pipeline) == {b"gold": 10, b"silver": 5}


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
