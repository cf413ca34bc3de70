"""What a record does to a table, and what a batch of them does: pure.

Formats of values:

    rows      a JSON object of columns. No value (a tombstone): the row of this key is deleted. A field that is left
              out is not changed. The header `op` = t empties the table
    debezium  Debezium's envelope: `after` is the row; `op` d deletes, t empties the table

A record's key is a JSON object of the key columns; for a single key column a JSON value or plain text will do.

A batch becomes, for each table, deletes and then upserts, with one row per key: a statement must not touch a row twice.
That gives what one statement per record would: what follows a delete starts from an empty row, what follows an upsert
goes on from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from oncelog.client import ConsumerRecord

Row = dict[str, Any]
FORMATS: Final = ("rows", "debezium")


class Unusable(ValueError):
    """A record that is no change of a row. The text says why."""


class Change(NamedTuple):
    """One record: `row` None deletes; `empties` takes all rows away."""

    record: ConsumerRecord
    key: Any
    row: Row | None
    empties: bool = False


def decode(record: ConsumerRecord, value_format: str) -> Change | None:
    """None for a record that says nothing new: the tombstone behind Debezium's delete."""
    value = _json(record.value, "value")
    key = _key(record.key)
    if value_format == "debezium":
        return _decode_envelope(record, key, value)
    if value is None:
        return Change(record, key, None, empties=_header(record, "op") == b"t")
    if not isinstance(value, dict):
        raise Unusable(f"its value is a {type(value).__name__}, not a JSON object of columns")
    return Change(record, key, value)


def _decode_envelope(record: ConsumerRecord, key: Any, value: Any) -> Change | None:
    if value is None:
        return None
    envelope = value.get("payload", value) if isinstance(value, dict) else None
    if not isinstance(envelope, dict) or "op" not in envelope:
        raise Unusable("its value is no Debezium envelope: there is no field op")
    if isinstance(key, dict) and isinstance(key.get("payload"), dict):
        key = key["payload"]
    operation = envelope["op"]
    if operation in ("c", "u", "r") and isinstance(envelope.get("after"), dict):
        after = {name: v for name, v in envelope["after"].items() if v != "__debezium_unavailable_value"}
        return Change(record, key, after)
    if operation == "d":
        return Change(record, key if key is not None else envelope.get("before"), None)
    if operation == "t":
        return Change(record, key, None, empties=True)
    if operation == "m":
        return None
    raise Unusable(f"operation {operation!r} of its Debezium envelope is none of c, u, r, d, t, m, or has no row")


def _json(data: bytes | None, what: str) -> Any:
    if data is None:
        return None
    try:
        return json.loads(data)
    except ValueError as error:
        raise Unusable(f"its {what} is not JSON: {error}") from None


def _key(data: bytes | None) -> Any:
    """Plain text that is not JSON stands for itself."""
    if data is None:
        return None
    try:
        return json.loads(data)
    except ValueError:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise Unusable(f"its key is neither JSON nor text: {error}") from None


def _header(record: ConsumerRecord, name: str) -> bytes | None:
    return next((value for header, value in record.headers if header == name), None)


def key_values(change: Change, columns: Sequence[str]) -> tuple[Any, ...]:
    """The values of the key columns, from the row or else from the record's key. Raises Unusable."""
    row, key = change.row or {}, change.key
    if isinstance(key, dict):
        values = [row[name] if name in row else key.get(name) for name in columns]
    elif len(columns) == 1:
        values = [row.get(columns[0], key)]
    else:
        values = [row.get(name) for name in columns]
    missing = [name for name, value in zip(columns, values, strict=True) if value is None]
    if missing:
        raise Unusable(f"it has no value for the key column{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    return tuple(json.dumps(value) if isinstance(value, dict | list) else value for value in values)


class TablePlan(NamedTuple):
    """What a batch does to one table, in this order."""

    empties: bool
    deletes: list[tuple[Any, ...]]
    """By key."""
    writes: list[tuple[tuple[str, ...], list[list[Any]]]]
    """Rows by their columns."""


def plan_appends(changes: Iterable[Change]) -> TablePlan:
    """Rows in their order, those in a row with the same columns together."""
    writes: list[tuple[tuple[str, ...], list[list[Any]]]] = []
    for change in changes:
        if change.row is None:
            raise Unusable("it is a delete, and the sink appends")
        columns = tuple(change.row)
        if not writes or writes[-1][0] != columns:
            writes.append((columns, []))
        writes[-1][1].append(list(change.row.values()))
    return TablePlan(False, [], writes)


def plan_upserts(changes: Iterable[Change], key_columns: Sequence[str]) -> TablePlan:
    """One row per key; see above."""
    empties = False
    deleted: dict[tuple[Any, ...], None] = {}
    rows: dict[tuple[Any, ...], Row] = {}
    for change in changes:
        if change.empties:
            empties = True
            deleted.clear()
            rows.clear()
            continue
        key = key_values(change, key_columns)
        if change.row is None:
            deleted[key] = None
            rows.pop(key, None)
        elif key in rows:
            rows[key].update(change.row)
        else:
            rows[key] = {**dict(zip(key_columns, key, strict=True)), **change.row}
    grouped: dict[tuple[str, ...], list[list[Any]]] = {}
    for row in rows.values():
        grouped.setdefault(tuple(row), []).append(list(row.values()))
    return TablePlan(empties, list(deleted), list(grouped.items()))


def unknown_columns(row: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    return [name for name in row if name not in set(known)]


def sql_type(value: Any) -> str:
    """For the `alter table` in a message."""
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
