"""Micro-batches into a table of PostgreSQL: each once, whatever fails between the steps."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import oncelog.spark
from oncelog.core import failpoints
from oncelog.spark.resume import CannotResume
from oncelog.spark.source_options import OptionError
from tests.connect.postgres import PostgresServer, postgres_server
from tests.spark.kafka import PATIENCE_S

pytestmark = pytest.mark.spark
LONG = pytest.mark.long


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


class Lines:
    """A streaming query over a folder of JSON lines, into a table."""

    def __init__(self, spark: Any, folder: Path, url: str) -> None:
        self._spark, self.folder, self.url = spark, folder, url
        (folder / "in").mkdir()
        self.execute("create table rows (id bigint, name text, at timestamptz, n numeric)")
        self.execute("create table latest (id bigint primary key, name text, at timestamptz, n numeric)")

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def add(self, *ids: int) -> None:
        lines = [json.dumps({"id": n, "name": f"row {n}", "at": "2026-01-02T03:04:05Z", "n": f"{n}.50"}) for n in ids]
        (self.folder / "in" / f"{uuid.uuid4().hex}.json").write_text("\n".join(lines))

    def run(self, *, checkpoint: str = "checkpoint", table: str = "rows", **given: Any) -> None:
        schema = "id bigint, name string, at timestamp, n decimal(20, 2)"
        frame = self._spark.readStream.schema(schema).json(str(self.folder / "in"))
        writer = oncelog.spark.write_stream_to_postgres(frame, url=self.url, table=table, sink="lines", **given)
        query = writer.option("checkpointLocation", str(self.folder / checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination(PATIENCE_S)
        assert not query.isActive

    def ids(self) -> list[int]:
        return [number for (number,) in self.execute("select id from rows order by id")]


@pytest.fixture
def lines(spark: Any, tmp_path: Path, postgres: PostgresServer) -> Iterator[Lines]:
    yield Lines(spark, tmp_path, postgres.create_database(f"lines-{uuid.uuid4().hex[:8]}"))
    failpoints.disarm_all()


class Died(Exception):
    pass


def die() -> None:
    raise Died("the driver is gone")


@pytest.mark.parametrize("point", ["spark.postgres.committed", pytest.param("spark.postgres.staged", marks=LONG),
                                   pytest.param("spark.postgres.moved", marks=LONG)])  # fmt: skip
def test_a_driver_that_dies_between_the_steps_leaves_each_row_once(lines: Lines, point: str) -> None:
    lines.add(1, 2, 3)
    lines.run()
    lines.add(4, 5)
    failpoints.arm(point, die)
    with pytest.raises(Exception, match="the driver is gone"):
        lines.run()
    failpoints.disarm_all()
    lines.add(6)
    lines.run()
    assert lines.ids() == [1, 2, 3, 4, 5, 6]
    assert lines.execute("select name, at::text, n::text from rows where id = 4") == [
        ("row 4", "2026-01-02 03:04:05+00", "4.50")
    ]
    assert lines.execute("select count(*) from pg_tables where tablename like 'oncelog_stage%'") == [(1,)]


@LONG
def test_runs_of_tasks_that_do_not_count_are_left_out(lines: Lines) -> None:
    lines.add(1, 2)

    def stage_a_second_run() -> None:
        [(stage,)] = lines.execute("select tablename from pg_tables where tablename like 'oncelog_stage%'")
        lines.execute(f'insert into "{stage}" select id, name, at, n, oncelog_attempt, oncelog_part, -1 from "{stage}"')

    failpoints.arm("spark.postgres.staged", stage_a_second_run)
    lines.run()
    assert lines.ids() == [1, 2]


def test_an_older_driver_is_fenced_at_its_commit(lines: Lines) -> None:
    def take_over() -> None:
        lines.execute("update oncelog_spark_sinks set instance = 'newer', owner = owner + 1")

    lines.add(1)
    failpoints.arm("spark.postgres.staged", take_over)
    with pytest.raises(Exception, match="another driver has taken over"):
        lines.run()
    assert lines.ids() == []


@LONG
def test_a_new_checkpoint_is_refused_unless_told_to(lines: Lines) -> None:
    lines.add(1)
    lines.run()
    with pytest.raises(Exception, match=r"its checkpoint is a new one") as caught:
        lines.run(checkpoint="other")
    assert CannotResume.__name__ in str(caught.value)
    lines.run(checkpoint="other", on_new_checkpoint="reprocess")
    assert lines.ids() == [1, 1]


def test_an_old_copy_of_the_checkpoint_is_refused(lines: Lines) -> None:
    """What it plans as its next batch is not what the table has under that number."""
    lines.execute(
        "create table oncelog_spark_sinks (sink text primary key, query text not null, batch bigint not null, owner "
        "bigint not null, instance text not null, input text not null)"
    )  # as earlier versions made it
    lines.add(1)
    lines.run()
    shutil.copytree(lines.folder / "checkpoint", lines.folder / "old")
    lines.add(2)
    lines.run()
    lines.add(3)
    with pytest.raises(Exception, match="the checkpoint is an older copy"):
        lines.run(checkpoint="old")
    lines.run()
    assert lines.ids() == [1, 2, 3]


def test_an_old_copy_of_the_table_is_refused(lines: Lines) -> None:
    for number in (1, 2, 3):
        lines.add(number)
        lines.run()
    lines.execute("delete from rows where id > 1; update oncelog_spark_sinks set batch = 0")
    lines.add(4)
    with pytest.raises(Exception, match=r"has batches up to 0 of this query, and checkpoint .* goes on with batch 3"):
        lines.run()
    assert lines.ids() == [1]


@LONG
def test_rows_are_found_by_key_and_the_largest_wins(lines: Lines) -> None:
    lines.add(1, 2)
    given = {"table": "latest", "mode": "upsert", "key": ["id"], "order_by": "n"}
    lines.run(**given)
    lines.add(2, 2, 3)
    lines.run(**given)
    assert lines.execute("select id from latest order by id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"mode": "x"}, "append or upsert"),
        ({"mode": "upsert"}, "needs key"),
        ({"key": ["id"]}, "needs key"),
        ({"mode": "upsert", "key": ["nothing"]}, "no column nothing"),
        ({"on_new_checkpoint": "x"}, "refuse, reprocess"),
    ],
)
def test_options_that_make_no_sense_are_refused(lines: Lines, given: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        lines.run(**given)
