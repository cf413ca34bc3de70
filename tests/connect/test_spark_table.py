"""What the driver of a Spark sink moves into a table of PostgreSQL, without Spark: see tests/spark for the whole."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from oncelog.spark.micro_batch import MicroBatch
from oncelog.spark.postgres_table import PostgresTableSink, Staged, Target, copy_to_stage
from oncelog.spark.resume import NewCheckpoint
from oncelog.spark.written_batches import LastBatch


class Driver:
    def __init__(self, url: str, *columns: str, key: tuple[str, ...] = (), order_by: str | None = None) -> None:
        self.target = Target(url, "public.copy", "s", "me", columns, key, order_by)
        self.sink: Any = PostgresTableSink(None, self.target, NewCheckpoint.REFUSE)  # type: ignore[arg-type]

    def write(self, number: int, rows: list[tuple[Any, ...]], between: Callable[[], None] = lambda: None) -> None:
        attempt = uuid.uuid4().hex
        batch = MicroBatch("query", number, "/checkpoint", None, {})
        with self.target.connect(autocommit=True) as connection:
            last = self.sink._last_batch(connection, batch)
            columns = [pa.array(values) for values in zip(*rows, strict=True)]
            found = pa.RecordBatch.from_arrays(columns, list(self.target.columns))
            count = copy_to_stage(self.target, [found], (attempt, 0, 1))
            between()
            self.sink._commit(connection, batch, LastBatch(number), last.number, attempt, [Staged(0, 1, count)])

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.target.url, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []


def test_a_row_without_a_value_to_order_by_does_not_win(database: str) -> None:
    driver = Driver(database, "id", "n", key=("id",), order_by="n")
    driver.execute("create table copy (id bigint primary key, n bigint)")
    driver.write(0, [(1, 4), (1, None), (1, 5), (2, None)])
    assert driver.execute("select * from copy order by id") == [(1, 5), (2, None)]


def test_columns_may_have_any_name(database: str) -> None:
    driver = Driver(database, "a.b", "50%", "%s", "$1", key=("a.b",))
    driver.execute('create table copy ("a.b" bigint primary key, "50%" bigint, "%s" bigint, "$1" bigint)')
    driver.write(0, [(1, 2, 3, 4)])
    driver.write(1, [(1, 5, 6, 7)])
    assert driver.execute("select * from copy") == [(1, 5, 6, 7)]


def test_a_batch_whose_staged_rows_are_gone_is_not_taken_for_written(database: str) -> None:
    driver = Driver(database, "id")
    driver.execute("create table copy (id bigint)")
    with pytest.raises(RuntimeError, match="not all the rows of batch 0"):
        driver.write(0, [(1,), (2,)], lambda: driver.execute("delete from oncelog_stage_me where id = 2") and None)
    assert driver.execute("select * from copy") == []
    driver.write(0, [(1,), (2,)])
    assert driver.execute("select * from copy order by id") == [(1,), (2,)]


def test_a_target_does_not_show_its_password() -> None:
    driver = Driver("postgresql://me:secret@db/shop", "id")
    assert "secret" not in repr(driver.sink)
