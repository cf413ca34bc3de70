"""Rows of PostgreSQL as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.connect.change_format import Table, key_columns
from oncelog.connect.pgoutput import UNCHANGED, Column, Relation, Value

COLUMNS = (
    Column("id", 20, True),
    Column("100% of it", 25, True),
    Column('a "name"', 25, False),
    Column("is_new", 16, False),
    Column("ratio", 701, False),
    Column("more", 3802, False),
)
TABLE = Table(Relation(1, "public", "t", "d", COLUMNS), "topic", ["id", "100% of it"])
NOTHING = st.sampled_from([None, UNCHANGED])
ROWS = st.tuples(
    st.integers().map(str),
    st.text(),
    st.one_of(NOTHING, st.text()),
    st.one_of(NOTHING, st.sampled_from("tf")),
    st.one_of(NOTHING, st.sampled_from(["1.5", "1e+20", "NaN", "-Infinity"])),
    st.one_of(NOTHING, st.just('{"x": ["%s"]}')),
).map(list)


@given(ROWS)
def test_a_row_that_is_encoded_at_once_is_what_its_columns_are(values: list[Value]) -> None:
    row, key = TABLE.encoded(values)
    assert (row, key) == (TABLE.row(values), TABLE.key(values))
    shown = json.loads(row)
    assert [name for name, value in zip(TABLE.fields(values), shown, strict=True) if name != value] == []
    assert key is not None
    assert json.loads(key) == {"id": int(str(values[0])), "100% of it": values[1]}
    assert shown["id"] == int(str(values[0]))


def test_json_is_in_strings_where_debezium_has_it_so() -> None:
    relation = Relation(
        1, "public", "t", "d", (Column("id", 20, True), Column("a", 114, False), Column("b", 3802, False))
    )
    values: list[Value] = ["1", '{"x": "\\n"}', None]
    assert json.loads(Table(relation, "topic", ["id"]).row(values)) == {"id": 1, "a": {"x": "\n"}, "b": None}
    as_text = Table(relation, "topic", ["id"], json_as_text=True)
    assert json.loads(as_text.row(values)) == {"id": 1, "a": '{"x": "\\n"}', "b": None}
    assert as_text.encoded(["1", "[1]", "null"])[0] == '{"id":1,"a":"[1]","b":"null"}'


def test_a_table_without_a_key_has_none() -> None:
    assert Table(Relation(1, "public", "t", "n", COLUMNS[:1]), "topic", []).encoded(["1"]) == ('{"id":1}', None)


@pytest.mark.parametrize(
    ("identity", "marked", "primary", "key"),
    [
        ("d", "ab", "ab", "ab"),
        ("d", "", "", ""),
        ("d", "", "a", "a"),  # one that can be deferred: there are only inserts
        ("i", "b", "a", "b"),
        ("i", "ab", "b", "b"),
        ("i", "bc", "ab", "bc"),
        ("i", "b", "", "b"),
        ("i", "", "a", "a"),  # its index was dropped
        ("f", "abc", "a", "a"),
        ("f", "abc", "", ""),
        ("n", "", "a", "a"),
        ("n", "", "ax", ""),  # not all of it is published
    ],
)
def test_the_key_is_the_primary_key_wherever_a_delete_has_it(
    identity: str, marked: str, primary: str, key: str
) -> None:
    columns = tuple(Column(name, 25, name in marked) for name in "abc")
    assert "".join(key_columns(Relation(1, "public", "t", identity, columns), list(primary))) == key
