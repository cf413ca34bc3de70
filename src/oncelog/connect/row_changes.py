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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from oncelog.client import ConsumerRecord

Row = dict[str, Any]
FORMATS: Final = ("rows", "debezium")
_scan: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class Unusable(ValueError):
    """A record that is no change of a row. The text says why."""


class Change(NamedTuple):
    """One record: `row` None deletes; `empties` takes all rows away."""

    record: ConsumerRecord
    row: Row | None
    empties: bool = False

    @property
    def key(self) -> Any:
        """What its key says. Decoded when it is needed: most rows have their key columns themselves."""
        return _key(self.record.key)


def decode(record: ConsumerRecord, value_format: str) -> Change | None:
    """None for a record that says nothing new: the tombstone behind Debezium's delete."""
    value = _json(record.value)
    if value_format == "debezium":
        return _decode_envelope(record, value)
    if value is None:
        return Change(record, None, empties=_header(record, "op") == b"t")
    if not isinstance(value, dict):
        raise Unusable(f"its value is a {type(value).__name__}, not a JSON object of columns")
    return Change(record, value)


def _decode_envelope(record: ConsumerRecord, value: Any) -> Change | None:
    if value is None:
        return None
    envelope = value.get("payload", value) if isinstance(value, dict) else None
    if not isinstance(envelope, dict) or "op" not in envelope:
        raise Unusable("its value is no Debezium envelope: there is no field op")
    operation = envelope["op"]
    if operation in ("c", "u", "r") and isinstance(envelope.get("after"), dict):
        after = {name: v for name, v in envelope["after"].items() if v != "__debezium_unavailable_value"}
        return Change(record, after)
    if operation == "d":
        return Change(record, None)
    if operation == "t":
        return Change(record, None, empties=True)
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
    except (StopIteration, ValueError):
        pass
    try:
        return json.loads(data)
    except ValueError as error:
        raise Unusable(f"its value is not JSON: {error}") from None


def _key(data: bytes | None) -> Any:
    """Plain text that is not JSON stands for itself."""
    if data is None:
        return None
    try:
        found = json.loads(data)
        # Connect's JSON converter wraps a key with its schema.
        return found["payload"] if isinstance(found, dict) and set(found) == {"schema", "payload"} else found
    except ValueError:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise Unusable(f"its key is neither JSON nor text: {error}") from None


def _header(record: ConsumerRecord, name: str) -> bytes | None:
    return next((value for header, value in record.headers if header == name), None)


def key_values(change: Change, columns: Sequence[str]) -> tuple[Any, ...]:
    """The values of the key columns, from the row or else from the record's key. Raises Unusable."""
    row = change.row or {}
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
            has_key = all(name in change.row for name in key_columns)
            rows[key] = change.row if has_key else {**dict(zip(key_columns, key, strict=True)), **change.row}
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
