"""Rows of JSON values as the text that PostgreSQL's COPY reads. Pure.

A row is a line, its values are separated by tabs. No value is \\N. Tab, line feed, carriage return and backslash in a
value are written as a backslash and t, n, r or another one. Objects and lists are JSON, true and false are t and f.

Theory of operation. Columns are turned into texts one by one, since most have values of one type, and put together
without looking for what needs a backslash. Whether there was something shows in the whole text: it has more tabs, lines
or backslashes than it should. Such batches are made again, with care.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

_NULL: Final = r"\N"
_WITH_BACKSLASH: Final = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
_TEXT_OF: Final[Mapping[type, Callable[[Any], str]]] = {
    str: str,
    int: str,
    float: repr,
    bool: lambda value: "t" if value else "f",
    dict: json.dumps,
    list: json.dumps,
    type(None): lambda _: _NULL,
}


class NulInText(ValueError):
    """PostgreSQL has no such texts."""


def copy_text(rows: Sequence[Collection[Any]], encoding: str = "utf-8") -> bytes:
    """The text of COPY for rows with the same columns. Raises NulInText, and UnicodeEncodeError for half a surrogate
    pair."""
    columns = list(zip(*rows, strict=True))
    if not columns:
        return b"\n" * len(rows)
    text = _lines(map(_texts, columns))
    if "\0" in text:
        raise NulInText("PostgreSQL's texts cannot have NUL (0x00) in them")
    nulls = sum(map(_nulls, columns))
    expected = {"\t": len(rows) * (len(columns) - 1), "\n": len(rows), "\r": 0, "\\": nulls}
    if any(text.count(character) != count for character, count in expected.items()):
        text = _lines(map(_careful_texts, columns))
    return text.encode(encoding)


def _lines(columns: Iterable[Iterable[str]]) -> str:
    return "\n".join((*map("\t".join, zip(*columns, strict=True)), ""))


def _texts(column: Sequence[Any]) -> Iterable[str]:
    kinds = set(map(type, column))
    if kinds == {str}:
        return column
    if len(kinds) == 1:
        return map(_TEXT_OF[kinds.pop()], column)
    return [_TEXT_OF[type(value)](value) for value in column]


def _nulls(column: Sequence[Any]) -> int:
    return column.count(None) if type(None) in set(map(type, column)) else 0


def _careful_texts(column: Sequence[Any]) -> Iterable[str]:
    for value in column:
        yield _NULL if value is None else _TEXT_OF[type(value)](value).translate(_WITH_BACKSLASH)
