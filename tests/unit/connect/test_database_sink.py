"""What a batch leaves in a table is what its records would have left one after the other."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oncelog.client import ConsumerRecord, TopicPartition
from oncelog.client.columns import SCHEMA
from oncelog.connect.settings import sink_settings
from oncelog.connect.sink import Batch, Instance, Move, Start
from oncelog.connect.sink_records import RecordColumns
from oncelog.connect.sqlite_sink import SqliteSink
from tests.unit.connect.test_row_changes import columns

PLACE = TopicPartition("t", 0)
YEAR_10000_MS = 253_402_300_800_000


def record(offset: int, key: bytes | None, value: Any) -> ConsumerRecord:
    raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return ConsumerRecord("t", 0, offset, 0, 0, key, raw, (), -1)


@contextmanager
def opened(path: Path, table: str, **more: Any) -> Iterator[SqliteSink]:
    with closing(sqlite3.connect(path)) as database:
        database.execute(table)
    settings = sink_settings({"name": "s", "url": str(path), "topics": ["t"], **more}, {})
    with closing(SqliteSink(settings, Instance())) as sink:
        sink.claim({PLACE: Start(0, "")})
        yield sink


def write(sink: SqliteSink, records: RecordColumns | list[ConsumerRecord], start: int = 0) -> int:
    moves = {PLACE: Move(start, start + len(records))}
    return sink.write(Batch(records, moves, sink.prepare(records)))


def rows(path: Path, query: str = "select * from t order by 1") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


@pytest.mark.parametrize("as_columns", [False, True])
@pytest.mark.parametrize(("kind", "value"), [("text", "1"), ("integer", "1"), ("text", 1)])
def test_a_delete_finds_the_row_of_its_batch_whose_key_is_written_otherwise(
    tmp_path: Path, kind: str, value: Any, as_columns: bool
) -> None:
    records = [record(0, b"1", {"id": value, "n": 7}), record(1, b'"1"' if value == 1 else b"1", None)]
    with opened(tmp_path / "db", f"create table t (id {kind} primary key, n integer)") as sink:
        sink.facts("t")
        write(sink, columns(records) if as_columns else records)
    assert rows(tmp_path / "db") == []


def test_rows_of_a_key_that_is_written_in_two_ways_keep_their_order(tmp_path: Path) -> None:
    records = [record(n, None, row) for n, row in enumerate([{"id": 7, "n": 0}, {"id": 1, "n": 1, "m": 1}])]
    records.append(record(2, None, {"id": "1", "n": 2}))
    with opened(tmp_path / "db", "create table t (id integer primary key, n integer, m integer)") as sink:
        write(sink, records)
    assert rows(tmp_path / "db") == [(1, 2, 1), (7, 0, None)]


def test_a_time_that_no_calendar_has_stops_nothing(tmp_path: Path) -> None:
    found = columns([record(0, b"1", None)])
    times = pa.array([YEAR_10000_MS * 1000], SCHEMA.field("timestamp").type)
    at = SCHEMA.get_field_index("timestamp")
    late = RecordColumns(pa.Table.from_batches([found.columns]).set_column(at, SCHEMA.field(at), times))
    with opened(tmp_path / "db", "create table t (id integer primary key)") as sink:
        assert write(sink, late) == 0
    assert late[0].timestamp_ms == YEAR_10000_MS


@pytest.mark.parametrize("as_columns", [False, True])
def test_a_record_that_is_nested_too_deeply_is_a_bad_record(tmp_path: Path, as_columns: bool) -> None:
    deep = b"[" * 100_000
    records = [
        record(0, b"1", {"id": 1}),
        record(1, b"2", b'{"id":' + deep),
        record(2, deep, None),
    ]  # the last key is a text
    with opened(tmp_path / "db", "create table t (id integer primary key)", errors="dead-letters") as sink:
        sink.facts("t")
        assert write(sink, columns(records) if as_columns else records) == 1
    assert rows(tmp_path / "db") == [(1,)]


def test_records_that_are_read_again_are_dead_letters_again(tmp_path: Path) -> None:
    with opened(tmp_path / "db", "create table t (id integer primary key)", errors="dead-letters") as sink:
        assert write(sink, [record(0, None, b"not JSON")]) == 1
        sink._execute("update oncelog_sink_offsets set next_offset = 0")
        assert write(sink, [record(0, None, b"no JSON either")]) == 1
    assert rows(tmp_path / "db", "select record_value from oncelog_dead_letters") == [(b"no JSON either",)]


def test_a_field_that_is_left_out_is_not_changed_even_if_it_must_not_be_null(tmp_path: Path) -> None:
    records = [record(0, None, {"id": 1, "n": 1, "big": "text"}), record(1, None, {"id": 2, "n": 2, "big": "more"})]
    with opened(tmp_path / "db", "create table t (id integer primary key, n integer, big text not null)") as sink:
        write(sink, records)
        write(sink, [record(2, None, {"id": 1, "n": 3})], 2)
    assert rows(tmp_path / "db") == [(1, 3, "text"), (2, 2, "more")]
