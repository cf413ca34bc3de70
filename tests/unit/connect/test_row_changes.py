"""What a batch does to a table is what its records would do one after the other."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.client import ConsumerRecord, TopicPartition
from oncelog.client.columns import SCHEMA
from oncelog.connect.row_changes import (
    RowChange,
    TablePlan,
    Unusable,
    decode,
    key_values,
    plan_appends,
    plan_plain_appends,
    plan_plain_upserts,
    plan_upserts,
    with_json_texts,
)
from oncelog.connect.sink_records import RecordColumns, joined


def record(key: Any, value: Any, headers: tuple[tuple[str, bytes | None], ...] = ()) -> ConsumerRecord:
    raw_key = key if isinstance(key, bytes) or key is None else json.dumps(key).encode()
    raw_value = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return ConsumerRecord("t", 0, 0, 0, 0, raw_key, raw_value, headers, -1)


def columns(records: list[ConsumerRecord]) -> RecordColumns:
    times = [datetime.fromtimestamp(found.timestamp_ms / 1000, tz=UTC) for found in records]
    headers = [[{"key": name, "value": value} for name, value in found.headers] for found in records]
    named = {"key": [r.key for r in records], "value": [r.value for r in records], "headers": headers,
             "topic": [r.topic for r in records], "partition": [r.partition for r in records],
             "offset": [r.offset for r in records], "timestamp": times,
             "timestampType": [r.timestamp_type for r in records]}  # fmt: skip
    return RecordColumns(pa.RecordBatch.from_pydict(named, SCHEMA))


def lists(plan: TablePlan) -> TablePlan:
    return plan._replace(writes=[(names, [list(row) for row in rows]) for names, rows in plan.writes])


FIELDS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))
CHANGES = st.lists(st.one_of(st.just("empty"), st.tuples(st.integers(0, 3), st.one_of(st.none(), FIELDS))))


@given(CHANGES, st.dictionaries(st.integers(0, 3), FIELDS))
def test_a_plan_is_what_one_statement_per_record_would_do(changes: list[Any], before: dict[int, Any]) -> None:
    expected = {key: dict(row) for key, row in before.items()}
    decoded = []
    for change in changes:
        if change == "empty":
            expected.clear()
            decoded.append(RowChange(record(None, None), None, empties=True))
            continue
        key, row = change
        decoded.append(RowChange(record({"id": key}, None), None if row is None else dict(row)))
        if row is None:
            expected.pop(key, None)
        else:
            expected[key] = {**expected.get(key, {}), **row}
    plan = plan_upserts(decoded, ["id"])
    table = {} if plan.empties else {key: dict(row) for key, row in before.items()}
    for (key,) in plan.deletes:
        table.pop(key, None)
    touched = set()
    for columns, rows in plan.writes:
        for values in rows:
            row = dict(zip(columns, values, strict=True))
            key = row.pop("id")
            assert key not in touched, "a statement must not touch a row twice"
            touched.add(key)
            table[key] = {**table.get(key, {}), **row}
    assert table == expected


UNKNOWN = st.lists(
    st.tuples(st.sampled_from(["full", "partial", "delete", "empty"]), st.integers(0, 2), st.integers(0, 9)), max_size=6
)


@given(st.sets(st.integers(0, 2)), UNKNOWN)
def test_a_record_with_unknown_columns_never_makes_a_row(
    present: set[int], changes: list[tuple[str, int, int]]
) -> None:
    """One after the other, `partial` needs a row that is there; a plan must not take a batch that would not."""
    there, decoded, fits = set(present), [], True
    for kind, key, number in changes:
        if kind == "empty":
            there.clear()
            decoded.append(RowChange(record(None, None), None, empties=True))
        elif kind == "delete":
            there.discard(key)
            decoded.append(RowChange(record({"id": key}, None), None))
        elif kind == "full":
            there.add(key)
            decoded.append(RowChange(record({"id": key}, None), {"n": number, "large": "x"}))
        else:
            fits = fits and key in there
            decoded.append(RowChange(record({"id": key}, None), {"n": number}, unchanged=frozenset({"large"})))
    try:
        plan = plan_upserts(decoded, ["id"])
    except Unusable:
        assert not fits
        return
    left = set() if plan.empties else present - {key for (key,) in plan.deletes}
    if not {key for (key,) in plan.needed} <= left:
        assert not fits
        return
    for names, rows in plan.writes:
        for row in rows:
            found = dict(zip(names, row, strict=True))
            assert "large" in found or found["id"] in left, "a row was made without a column that is not known"


def test_an_unavailable_value_of_debezium_is_an_unknown_column() -> None:
    change = decode(record(1, {"op": "u", "after": {"id": 1, "large": "__debezium_unavailable_value"}}), "debezium")
    assert change is not None
    assert (change.row, change.unchanged) == ({"id": 1}, {"large"})


ROWS = st.dictionaries(st.sampled_from(["id", "b", "c"]), st.one_of(st.integers(0, 3), st.sampled_from(["x", ""])))
ODD = st.sampled_from([b"", b"{", b"[1]", b"{} {}", b'"x"', b"\xff", b'{"id": null}', b'{"id": 1.5}', b' {"id": 1} '])
HEADERS = st.sampled_from([(), (("op", b"d"),), (("op", b"t"),), (("unchanged", b"b"),)])
RECORDS = st.lists(st.builds(record, st.integers(0, 3), st.one_of(st.none(), ROWS, ROWS, ODD), HEADERS), max_size=6)


@given(RECORDS)
def test_a_batch_that_is_planned_at_once_is_planned_as_its_records_are(records: list[ConsumerRecord]) -> None:
    upserts, appends = plan_plain_upserts(columns(records), "id"), plan_plain_appends(columns(records))
    if upserts is not None:
        decoded = [change for found in records if (change := decode(found, "rows")) is not None]
        assert lists(upserts) == lists(plan_upserts(decoded, ["id"]))
    if appends is not None:
        decoded = [change for found in records if (change := decode(found, "rows")) is not None]
        assert lists(appends) == lists(plan_appends(decoded))


def test_texts_that_only_together_are_rows_are_not_planned_as_rows() -> None:
    halves = [b'{"id": 1, "b": [1', b"2]}", b'{"id": 2}, {"id": 3}']
    records = columns([record(None, None)._replace(value=value) for value in halves])
    assert plan_plain_upserts(records, "id") is None
    assert plan_plain_appends(records) is None


def test_most_batches_are_planned_at_once() -> None:
    records = [
        record({"id": 1}, {"id": 1, "b": 2}),
        record({"id": 1}, None, (("op", b"d"),)),
        record(None, {"id": 3}),
    ]
    plan = plan_plain_upserts(columns(records), "id")
    assert plan is not None
    assert lists(plan) == TablePlan(False, [(1,)], [(("id",), [[3]])])
    assert plan_plain_appends(columns(records[:1])) is not None


def test_records_as_columns_are_the_records() -> None:
    records = [
        record(1, {"id": 1}, (("a", b"1"), ("b", None)))._replace(offset=7, timestamp_ms=1_700_000_000_123),
        record(None, None)._replace(topic="u", partition=3, offset=9),
        record(2, {"id": 2})._replace(offset=8),
    ]
    found = columns(records)
    assert list(found) == records
    assert found[1] == records[1]
    assert list(found[1:]) == records[1:] == list(joined([found[1:2], found[2:]]))
    assert found.first_offsets() == {TopicPartition("t", 0): 7, TopicPartition("u", 3): 9}
    assert {topic: list(part) for topic, part in found.by_topic().items()} == {
        "t": [records[0], records[2]],
        "u": [records[1]],
    }


def test_appends_keep_their_order_and_their_columns() -> None:
    rows = [{"a": 1}, {"a": 2}, {"b": 3}, {"a": 4}]
    plan = plan_appends(RowChange(record(None, None), row) for row in rows)
    assert lists(plan).writes == [(("a",), [[1], [2]]), (("b",), [[3]]), (("a",), [[4]])]


@pytest.mark.parametrize(
    ("key", "row", "found"),
    [
        ({"id": 1, "n": "x"}, {}, (1, "x")),
        ({"id": 1}, {"n": "y"}, (1, "y")),
        (None, {"id": 1, "n": 2}, (1, 2)),
    ],
)
def test_key_columns_come_from_the_row_or_the_key(key: Any, row: Any, found: tuple[Any, ...]) -> None:
    assert key_values(RowChange(record(key, None), row), ["id", "n"]) == found


@pytest.mark.parametrize("text", ["abc", "007", "12e34", "1234e567", "1.0", "NaN", "-Infinity"])
def test_a_single_key_column_may_be_plain_text(text: str) -> None:
    change = decode(record(text.encode(), {"name": 1}), "rows")
    assert change is not None
    assert key_values(change, ["id"]) == (text,)


@pytest.mark.parametrize("spaces", ["", " "])
@pytest.mark.parametrize(
    "text", ["12345678901234567890.10", '{"x": [1.10, "1.10"]}', "1.5", "[]", "5", '"1.10"', "null", "true"]
)
def test_json_for_a_column_of_json_keeps_its_digits(text: str, spaces: str) -> None:
    value = f'{spaces}{{"id": 1, "a": 1.10, "j": {text}, "k": null}}{spaces}'.encode()
    expected = None if text == "null" else text
    change = decode(record(1, value), "rows", {"j", "k", "other"})
    assert change is not None and change.row is not None
    [[found]] = with_json_texts(["j"], [[change.row["j"]]], {"j"})
    assert found == expected and type(found) is (str if expected else type(None))
    assert (change.row["a"], change.row["k"]) == (1.1, None) and "other" not in change.row
    for plan in (
        plan_plain_upserts(columns([record(1, value)]), "id", {"j", "k"}),
        plan_plain_appends(columns([record(1, value)]), {"j", "k"}),
    ):
        assert plan is not None
        assert lists(plan).writes == [(("id", "a", "j", "k"), [[1, 1.1, change.row["j"], None]])]


@pytest.mark.parametrize(
    ("made", "value_format", "problem"),
    [
        (record(1, b"{"), "rows", "its value is not JSON"),
        (record(1, [1]), "rows", "not a JSON object"),
        (record(1, b'{"a": 1},{"b": 2}'), "rows", "its value is not JSON"),
        (record(1, b"\xff"), "rows", "its value is not JSON"),
        (record(1, {"a": 1}), "debezium", "no field op"),
        (record(1, {"op": "z"}), "debezium", "operation 'z'"),
        (record(1, {"op": "c"}), "debezium", "has no row"),
    ],
)
def test_what_is_no_change_of_a_row_is_unusable(made: ConsumerRecord, value_format: str, problem: str) -> None:
    with pytest.raises(Unusable, match=problem):
        decode(made, value_format)


def test_a_key_that_is_no_text_is_unusable() -> None:
    with pytest.raises(Unusable, match="neither JSON nor text"):
        key_values(RowChange(record(b"\xff", None), {}), ["id"])


def test_spaces_around_json_are_allowed() -> None:
    change = decode(record(b' {"schema": {}, "payload": {"id": 4}} ', b' {"a": 1}\n'), "rows")
    assert change is not None and change.row == {"a": 1}
    assert key_values(change, ["id"]) == (4,)


def test_a_key_without_a_value_is_unusable() -> None:
    with pytest.raises(Unusable, match="key columns id, n"):
        key_values(RowChange(record(None, None), {"a": 1}), ["id", "n"])
