"""What a batch does to a table is what its records would do one after the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.client import ConsumerRecord
from oncelog.connect.row_changes import Change, Unusable, decode, key_values, plan_appends, plan_upserts


def record(key: Any, value: Any, headers: tuple[tuple[str, bytes | None], ...] = ()) -> ConsumerRecord:
    raw_key = key if isinstance(key, bytes) or key is None else json.dumps(key).encode()
    raw_value = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return ConsumerRecord("t", 0, 0, 0, 0, raw_key, raw_value, headers, -1)


FIELDS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))
CHANGES = st.lists(st.one_of(st.just("empty"), st.tuples(st.integers(0, 3), st.one_of(st.none(), FIELDS))))


@given(CHANGES, st.dictionaries(st.integers(0, 3), FIELDS))
def test_a_plan_is_what_one_statement_per_record_would_do(changes: list[Any], before: dict[int, Any]) -> None:
    expected = {key: dict(row) for key, row in before.items()}
    decoded = []
    for change in changes:
        if change == "empty":
            expected.clear()
            decoded.append(Change(record(None, None), None, empties=True))
            continue
        key, row = change
        decoded.append(Change(record({"id": key}, None), None if row is None else dict(row)))
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


def test_appends_keep_their_order_and_their_columns() -> None:
    rows = [{"a": 1}, {"a": 2}, {"b": 3}, {"a": 4}]
    plan = plan_appends(Change(record(None, None), row) for row in rows)
    assert plan.writes == [(("a",), [[1], [2]]), (("b",), [[3]]), (("a",), [[4]])]


@pytest.mark.parametrize(
    ("key", "row", "found"),
    [
        ({"id": 1, "n": "x"}, {}, (1, "x")),
        ({"id": 1}, {"n": "y"}, (1, "y")),
        (None, {"id": 1, "n": 2}, (1, 2)),
    ],
)
def test_key_columns_come_from_the_row_or_the_key(key: Any, row: Any, found: tuple[Any, ...]) -> None:
    assert key_values(Change(record(key, None), row), ["id", "n"]) == found


def test_a_single_key_column_may_be_plain_text() -> None:
    change = decode(record(b"abc", {"name": 1}), "rows")
    assert change is not None
    assert key_values(change, ["id"]) == ("abc",)


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
        key_values(Change(record(b"\xff", None), {}), ["id"])


def test_spaces_around_json_are_allowed() -> None:
    change = decode(record(b' {"schema": {}, "payload": {"id": 4}} ', b' {"a": 1}\n'), "rows")
    assert change is not None and change.row == {"a": 1}
    assert key_values(change, ["id"]) == (4,)


def test_a_key_without_a_value_is_unusable() -> None:
    with pytest.raises(Unusable, match="key columns id, n"):
        key_values(Change(record(None, None), {"a": 1}), ["id", "n"])
