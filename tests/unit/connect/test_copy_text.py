"""Rows as the text of COPY: PostgreSQL finds in it what the driver would have sent."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg.adapt import AdaptersMap, PyFormat, Transformer
from psycopg.types.json import JsonDumper

from oncelog.connect.copy_text import NulInText, copy_text

TEXTS = st.text(st.one_of(st.sampled_from("\\\t\n\rNab"), st.characters(exclude_characters="\0", codec="utf-8")))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(TEXTS, inner, max_size=2)),
    max_leaves=3,
)
ROWS = st.integers(1, 3).flatmap(lambda width: st.lists(st.lists(VALUES, min_size=width, max_size=width), max_size=4))
NAMED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


class Context:
    connection = None
    adapters = AdaptersMap(psycopg.adapters)


for kind in (dict, list):
    Context.adapters.register_dumper(kind, JsonDumper)


def sent_by_driver(row: list[Any]) -> list[bytes | None]:
    dumped = Transformer(Context()).dump_sequence(row, [PyFormat.TEXT] * len(row))  # type: ignore[arg-type]
    return [None if value is None else bytes(value) for value in dumped]


def found_by_server(text: bytes) -> list[list[bytes | None]]:
    """By the rules in PostgreSQL's documentation."""
    assert text.endswith(b"\n") or not text
    return [[found_value(value) for value in line.split(b"\t")] for line in text.split(b"\n")[:-1]]


def found_value(value: bytes) -> bytes | None:
    if value == rb"\N":
        return None
    return re.sub(rb"\\(.)", lambda found: NAMED.get(found[1], found[1]), value, flags=re.DOTALL)


@given(ROWS)
@example([["a", None], [r"\N", "b"]])
@example([["one\tmore"]])
@example([["one\nmore", 1]])
def test_the_server_finds_what_the_driver_would_have_sent(rows: list[list[Any]]) -> None:
    assert found_by_server(copy_text(rows)) == [sent_by_driver(row) for row in rows]


def test_carriage_returns_are_never_bare() -> None:
    """A bare one would be an error, or the end of a line."""
    assert copy_text([["a\rb"]]) == b"a\\rb\n"


def test_rows_without_columns_are_lines() -> None:
    assert copy_text([{}.values(), {}.values()]) == b"\n\n"


def test_what_postgresql_cannot_have_is_refused() -> None:
    with pytest.raises(NulInText):
        copy_text([["a\0b"]])
    with pytest.raises(UnicodeEncodeError):
        copy_text([["\ud800"]])


def test_texts_are_in_the_encoding_of_the_connection() -> None:
    assert copy_text([["ä"]], "latin-1") == b"\xe4\n"
