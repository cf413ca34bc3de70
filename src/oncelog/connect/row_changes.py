"""What a record does to a table, and what a batch of them does: pure.

Formats of values:

    rows      a JSON object of columns. No value (a tombstone): the row of this key is deleted. A field that is left
              out is not changed. The header `op` = t empties the table
    debezium  Debezium's envelope: `after` is the row; `op` d deletes, t empties the table

A record's key is a JSON object of the key columns; for a single key column a JSON value or plain text will do.

Large values that an update did not change may be unknown: the header `unchanged` names their columns, and Debezium has
a text in their place. Such a record is a change of a row that is there, and never makes one.

A batch becomes, for each table, deletes and then upserts, with one row per key: a statement must not touch a row twice.
That gives what one statement per record would: what follows a delete starts from an empty row, what follows an upsert
goes on from it. Keys are compared as JSON gives them; a batch with keys of several types is not planned.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from oncelog.client import ConsumerRecord
from oncelog.connect.json_fields import fields_of
from oncelog.connect.sink_records import RecordColumns

Row = dict[str, Any]
FORMATS: Final = ("rows", "debezium")
_NOT_JSON: Final = (StopIteration, ValueError, RecursionError)
"""The last one is raised for what is nested too deeply."""
_PLAIN_KEYS: Final = frozenset((int, str))
_UNAVAILABLE: Final = "__debezium_unavailable_value"
_MARK: Final = secrets.token_hex(8)
_BETWEEN: Final = f',"{_MARK}",'.encode()
_DECODED_TOGETHER: Final = 500
_scan: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class Unusable(ValueError):
    """A record that is no change of a row. The text says why."""


class JsonText(str):
    """A JSON value, for a column of that type, as it was written: its numbers keep all their digits."""

    __slots__ = ()


class RowChange(NamedTuple):
    """One record: `row` None deletes; `empties` takes all rows away."""

    record: ConsumerRecord
    row: Row | None
    empties: bool = False
    unchanged: frozenset[str] = frozenset()
    """Columns that are left out because they are not known."""

    @property
    def key(self) -> Any:
        """What its key says. Decoded when it is needed: most rows have their key columns themselves."""
        return _key(self.record.key)


def decode(record: ConsumerRecord, value_format: str, of_json: Collection[str] = ()) -> RowChange | None:
    """None for a record that says nothing new: the tombstone behind Debezium's delete.

    `of_json` are columns whose type is JSON.
    """
    value = _json(record.value)
    if value_format == "debezium":
        return _decode_envelope(record, value)
    if value is None:
        return RowChange(record, None, empties=_header(record, "op") == b"t")
    if not isinstance(value, dict):
        raise Unusable(f"its value, of the type {type(value).__name__}, is not a JSON object of columns")
    _keep_digits(value, record.value or b"", of_json)
    return RowChange(record, value, unchanged=unchanged_fields(record))


def unchanged_fields(record: ConsumerRecord) -> frozenset[str]:
    """Those that the header `unchanged` names."""
    names = _header(record, "unchanged")
    return frozenset(names.decode(errors="replace").split(",")) if names else frozenset()


def _keep_digits(row: Row, data: bytes, of_json: Collection[str]) -> None:
    """Numbers inside of JSON columns as they were written, where Python has read them as double precision."""
    if any(_has_fraction(row.get(name)) for name in of_json):
        text = data.decode(json.detect_encoding(data)).strip(" \t\r\n")
        kept = {name: JsonText(value) for name, _, value in fields_of(text) if name in of_json}
        row.update({name: value for name, value in kept.items() if row[name] is not None})


def _has_fraction(value: Any) -> bool:
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, float):
            return True
        if isinstance(found, dict | list):
            waiting += found.values() if isinstance(found, dict) else found
    return False


def _decode_envelope(record: ConsumerRecord, value: Any) -> RowChange | None:
    if value is None:
        return None
    envelope = value.get("payload", value) if isinstance(value, dict) else None
    if not isinstance(envelope, dict) or "op" not in envelope:
        raise Unusable("its value is no Debezium envelope: there is no field op")
    operation = envelope["op"]
    if operation in ("c", "u", "r") and isinstance(envelope.get("after"), dict):
        unchanged = frozenset(name for name, value in envelope["after"].items() if value == _UNAVAILABLE)
        after = {name: value for name, value in envelope["after"].items() if name not in unchanged}
        return RowChange(record, after, unchanged=unchanged)
    if operation == "d":
        return RowChange(record, None)
    if operation == "t":
        return RowChange(record, None, empties=True)
    if operation == "m":
        return None
    raise Unusable(f"operation {operation!r} of its Debezium envelope is none of c, u, r, d, t, m, or has no row")


def _json(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        # What json.loads does in the end, without its many steps before.
        text = data.decode()
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    except _NOT_JSON:
        pass
    try:
        return json.loads(data)
    except _NOT_JSON as error:
        raise Unusable(f"its value is not JSON: {error}") from None


def _key(data: bytes | None) -> Any:
    """Plain text that is not JSON stands for itself. So does one that only looks like a number: 12e34 may be a name."""
    if data is None:
        return None
    try:
        found = json.loads(data)
        if isinstance(found, float):
            return data.decode()
        # Connect's JSON converter wraps a key with its schema.
        return found["payload"] if isinstance(found, dict) and set(found) == {"schema", "payload"} else found
    except _NOT_JSON:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise Unusable(f"its key is neither JSON nor text: {error}") from None


def _header(record: ConsumerRecord, name: str) -> bytes | None:
    return next((value for header, value in record.headers if header == name), None)


def key_values(change: RowChange, columns: Sequence[str]) -> tuple[Any, ...]:
    """The values of the key columns, from the row or else from the record's key. Raises Unusable."""
    row = change.row or {}
    if len(columns) == 1 and isinstance(value := row.get(columns[0]), str | int):
        return (value,)  # most keys, and the rest of this shows in the profile
    values = [row.get(name) for name in columns]
    if None in values and not all(name in row for name in columns):
        values = _with_key(row, change.key, columns)
    missing = [name for name, value in zip(columns, values, strict=True) if value is None]
    if missing:
        raise Unusable(f"it has no value for the key column{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    return tuple(json.dumps(value) if isinstance(value, dict | list) else value for value in values)


def _with_key(row: Row, key: Any, columns: Sequence[str]) -> list[Any]:
    if isinstance(key, dict):
        return [row[name] if name in row else key.get(name) for name in columns]
    if len(columns) == 1:
        return [row.get(columns[0], key)]
    return [row.get(name) for name in columns]


NO_ROW: Final = (
    "it leaves out large values that were not changed, and there is no row with its key that has them. PostgreSQL's "
    "log does not have such values, even if the key changes, and what an earlier record had is lost by compaction: "
    "`alter table ... replica identity full` brings them from then on"
)


class TablePlan(NamedTuple):
    """What a batch does to one table, in this order."""

    empties: bool
    deletes: list[tuple[Any, ...]]
    """By key."""
    writes: list[tuple[tuple[str, ...], list[Collection[Any]]]]
    """Rows by their columns."""
    needed: tuple[tuple[Any, ...], ...] = ()
    """Keys of rows that must be there behind the deletes: some of their columns are not known."""


def plan_appends(changes: Iterable[RowChange]) -> TablePlan:
    """Rows in their order, those in a row with the same columns together."""
    writes: list[tuple[tuple[str, ...], list[Collection[Any]]]] = []
    for change in changes:
        if change.row is None:
            raise Unusable("it is a delete, and the sink appends")
        columns = tuple(change.row)
        if not writes or writes[-1][0] != columns:
            writes.append((columns, []))
        writes[-1][1].append(change.row.values())
    return TablePlan(False, [], writes)


def plan_upserts(changes: Iterable[RowChange], key_columns: Sequence[str]) -> TablePlan:
    """One row per key; see above."""
    empties = False
    key_set = set(key_columns)
    unknown: dict[tuple[Any, ...], frozenset[str]] = {}
    deleted: dict[tuple[Any, ...], None] = {}
    rows: dict[tuple[Any, ...], Row] = {}
    kinds = set()
    for change in changes:
        if change.empties:
            empties = True
            deleted.clear()
            rows.clear()
            unknown.clear()
            continue
        key = key_values(change, key_columns)
        kinds.add(tuple(map(type, key)))
        if change.row is None:
            deleted[key] = None
            rows.pop(key, None)
            unknown.pop(key, None)
            continue
        if change.unchanged:
            unknown[key] = unknown.get(key, change.unchanged) | change.unchanged
        if key in rows:
            rows[key].update(change.row)
        else:
            has_key = key_set <= change.row.keys()
            rows[key] = change.row if has_key else {**dict(zip(key_columns, key, strict=True)), **change.row}
    if len(kinds) > 1:
        # 1 and "1" may be one row or two: the type of the column decides, when they are written one after the other.
        raise Unusable("its batch has keys of several types")
    needed = tuple(key for key, names in unknown.items() if not names <= rows[key].keys())
    if (empties and needed) or not deleted.keys().isdisjoint(needed):
        raise Unusable(NO_ROW)
    return TablePlan(empties, list(deleted), _by_columns(rows.values()), needed)


def _by_columns(rows: Collection[Row]) -> list[tuple[tuple[str, ...], list[Collection[Any]]]]:
    kinds = set(map(tuple, rows))
    if len(kinds) == 1:
        return [(kinds.pop(), [row.values() for row in rows])]
    grouped: dict[tuple[str, ...], list[Collection[Any]]] = {}
    for row in rows:
        grouped.setdefault(tuple(row), []).append(row.values())
    return list(grouped.items())


def plan_plain_upserts(records: RecordColumns, key: str, of_json: Collection[str] = ()) -> TablePlan | None:
    """What `plan_upserts` gives for most batches, in half the time.

    They have the format `rows`, their key is one column, their rows have it, and all their columns are known. None for
    others.
    """
    if records.have_header("unchanged"):
        return None
    found = _decoded_together(records.values, of_json)
    kinds = set(map(type, found))
    if kinds == {dict}:
        return _plan_without_deletes(found, key)
    return _plan_with_deletes(records, found, key) if kinds == {dict, type(None)} else None


def _plan_without_deletes(rows: list[Row], key: str) -> TablePlan | None:
    names = [row.get(key) for row in rows]
    if not _are_plain(names):
        return None
    return TablePlan(False, [], _by_columns(rows if len(set(names)) == len(names) else _merged(names, rows)))


def _merged(names: Iterable[Any], rows: Iterable[Row]) -> Collection[Row]:
    """One row per key."""
    merged: dict[Any, Row] = {}
    for name, row in zip(names, rows, strict=True):
        merged.setdefault(name, row).update(row)
    return merged.values()


def _plan_with_deletes(records: RecordColumns, found: Iterable[Row | None], key: str) -> TablePlan | None:
    deleted: dict[Any, None] = {}
    rows: dict[Any, Row] = {}
    for at, row in enumerate(found):
        if row is None:
            change = RowChange(records[at], None)
            if _header(change.record, "op") == b"t":
                return None
            [name] = key_values(change, (key,))
            deleted[name] = None
            rows.pop(name, None)
            continue
        if type(name := row.get(key)) not in _PLAIN_KEYS:
            return None
        rows.setdefault(name, row).update(row)
    if not _are_plain([*rows, *deleted]):
        return None
    return TablePlan(False, [(name,) for name in deleted], _by_columns(rows.values()))


def _are_plain(keys: Iterable[Any]) -> bool:
    """All numbers, or all texts."""
    kinds = set(map(type, keys))
    return len(kinds) <= 1 and kinds <= _PLAIN_KEYS


def plan_plain_appends(records: RecordColumns, of_json: Collection[str] = ()) -> TablePlan | None:
    """What `plan_appends` gives for batches of the format `rows` without deletes. None for others."""
    rows = _decoded_together(records.values, of_json)
    if set(map(type, rows)) != {dict}:
        return None
    runs = groupby(rows, key=tuple)
    return TablePlan(False, [], [(columns, [row.values() for row in run]) for columns, run in runs])


def _decoded_together(values: Sequence[bytes | None], of_json: Collection[str]) -> list[Any]:
    """What the values say, None for no value. Empty if one of them is not JSON.

    Many are decoded with one call, as one list: so the scanner makes the names of fields once. A mark between any two
    of them tells whether each is one whole value by itself, as texts such as `1,2` are not. Nobody knows the mark, so
    it is in none of them.
    """
    decoded: list[Any] = []
    for start in range(0, len(values), _DECODED_TOGETHER):
        part = [b"null" if value is None else value for value in values[start : start + _DECODED_TOGETHER]]
        try:
            text = f"[{_BETWEEN.join(part).decode()}]"
            found, end = _scan(text, 0)
        except _NOT_JSON:
            return []
        if end != len(text) or len(found) != 2 * len(part) - 1 or found[1::2].count(_MARK) != len(part) - 1:
            return []
        decoded += found[::2]
    if of_json:
        for value, row in zip(values, decoded, strict=True):
            if isinstance(row, dict):
                _keep_digits(row, value or b"", of_json)
    return decoded


def with_json_texts(
    columns: Sequence[str], rows: Iterable[Collection[Any]], of_json: Collection[str]
) -> list[Collection[Any]]:
    """Values of JSON columns as JSON: a text "5" is no number there, and `true` is no `t`."""
    is_json = [name in of_json for name in columns]
    return [[_json_text(v) if j else v for v, j in zip(row, is_json, strict=True)] for row in rows]


def _json_text(value: Any) -> str | None:
    if value is None:
        return None
    return str(value) if type(value) is JsonText else json.dumps(value)


def unknown_columns(row: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    return [name for name in row if name not in set(known)]


def sql_type(value: Any) -> str:
    """The type of a column for a value, in the `alter table` that a message suggests."""
    match value:
        case bool():
            return "boolean"
        case int():
            return "bigint"
        case float():
            return "double precision"
        case dict() | list():
            return "jsonb"
        case _:
            return "text"
