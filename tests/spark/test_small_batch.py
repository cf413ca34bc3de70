"""Which batches the driver takes, and when it lets go of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.core.ids import TopicPartition
from oncelog.spark import write_job
from oncelog.spark.micro_batch import MicroBatch
from oncelog.spark.small_batch import (
    BATCH_OFFSETS,
    COLLECTED_BYTES,
    COLUMN_BYTES_MIN,
    LARGE_RUN,
    TOO_LONG,
    TOO_MANY,
    Limits,
    NotSmall,
    SmallBatches,
    checked,
    limits,
)
from tests.spark.pipeline import Pipeline

PARTITION = TopicPartition("in", 0)


def batch(number: int, records: int) -> MicroBatch:
    return MicroBatch("q", number, "file:/c", {PARTITION: 0}, {PARTITION: records}, only_kafka=True)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=50), st.integers(1, 1000), st.integers(1, 5))
def test_what_is_collected_is_bounded_however_many_tasks_there_are(
    records: list[int], tasks: int, columns: int
) -> None:
    allowed = limits(records, tasks, columns)
    if allowed is not None:
        assert allowed.rows >= max(records)
        assert allowed.rows * tasks >= sum(records)
        assert allowed.rows * tasks * columns * allowed.column_bytes <= COLLECTED_BYTES
        assert allowed.column_bytes >= COLUMN_BYTES_MIN


def bytes_of_a_column(records: list[int], tasks: int, columns: int = 2) -> int:
    allowed = limits(records, tasks, columns)
    assert allowed is not None
    return allowed.column_bytes


def test_small_records_of_a_small_batch_fit() -> None:
    assert bytes_of_a_column([BATCH_OFFSETS], tasks=8) >= 1024
    assert bytes_of_a_column([50, 50], tasks=2) >= 32_768


def test_small_records_of_many_tasks_fit_too() -> None:
    """Nearly every batch was computed twice: 16 bytes of a column were allowed."""
    for tasks in (64, 200, 1000):
        assert bytes_of_a_column([5] * 1000, tasks) >= 2048
        allowed = limits([5] * 1000, tasks, columns=2)
        assert allowed is not None
        assert allowed.rows >= 2 * 5000 // tasks


def test_a_batch_that_is_not_shared_out_evenly_is_not_computed_twice() -> None:
    assert limits([4000, *[1] * 999], tasks=1000, columns=2) is None


def test_a_table_that_was_cut_is_not_taken() -> None:
    allowed = Limits(rows=2, column_bytes=4)
    fitting = pa.table({"key": pa.array([None, b"1234"]), "value": pa.array([b"1234", None]), "partition": [1, 70000]})
    assert checked(fitting, allowed) == fitting
    flagged = fitting.append_column(TOO_LONG, [[False, False]]).append_column(TOO_MANY, [[False, False]])
    assert checked(flagged, allowed) == fitting
    assert checked(pa.concat_tables([fitting] * 9), allowed).num_rows == 18, "of nine tasks"
    for cut in (
        fitting.append_column(TOO_MANY, [[False, True]]),
        pa.table({"value": [b"12345"]}),
        pa.table({"key": [b"12345"], "value": [b"1"]}),
        pa.table({"topic": ["ääää"], "value": [b"1"]}),
        fitting.append_column(TOO_LONG, [[False, True]]),
    ):
        with pytest.raises(NotSmall):
            checked(cut, allowed)


def test_after_a_large_batch_the_next_ones_are_not_tried() -> None:
    small = SmallBatches()
    assert small.may_be_small(batch(0, 10))
    assert not small.may_be_small(batch(0, BATCH_OFFSETS + 1))
    small.was_large(batch(3, 10))
    assert not small.may_be_small(batch(3 + LARGE_RUN, 10))
    assert small.may_be_small(batch(4 + LARGE_RUN, 10))


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[write_job.WriteMode]:
    """How tasks have written, where it was not the driver."""
    seen: list[write_job.WriteMode] = []
    honest = write_job.run_orders

    def noting(frame: Any, columns: Any, orders: write_job.TaskOrders) -> write_job.Written:
        seen.append(orders.mode)
        return honest(frame, columns, orders)

    monkeypatch.setattr(write_job, "run_orders", noting)
    return seen


@pytest.mark.spark
def test_few_records_of_many_partitions_are_written_by_the_driver(
    pipeline: Pipeline, modes: list[write_job.WriteMode]
) -> None:
    """All tasks together hand over more rows than each of them may."""
    partitions, each = 12, 20
    pipeline.kafka.grow(pipeline.source, partitions)
    allowed = limits([each] * partitions, partitions, columns=2)
    assert allowed is not None
    assert each < allowed.rows < partitions * each
    for partition in range(partitions):
        pipeline.kafka.send(pipeline.source, [b"a"] * each, partition=partition)
    pipeline.run()
    assert modes == []
    assert len(pipeline.kafka.read(pipeline.target)) == partitions * each


HEADERS = "array(struct('h' as key, cast(repeat('x', 200000) as binary) as value)) as headers"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("columns", "count"),
    [
        (["explode(array_repeat(value, 3000)) as value"], 6000),
        (["cast(repeat('x', 200000) as binary) as value"], 2),
        (["value", HEADERS], 2),
    ],
    ids=["many rows", "long values", "long headers"],
)
def test_few_records_that_become_much_are_written_by_tasks_at_the_first_attempt(
    pipeline: Pipeline, modes: list[write_job.WriteMode], columns: list[str], count: int
) -> None:
    pipeline.kafka.send(pipeline.source, [b"a", b"b"], partition=0)
    pipeline.settings["batch_attempts"] = 1
    pipeline.run(pipeline.read().selectExpr(*columns))
    assert modes == [write_job.WriteMode.DIRECT]
    assert len(pipeline.kafka.read(pipeline.target)) == count
    assert pipeline.kafka.group_offsets(pipeline.id, pipeline.source, 1) == [2]
