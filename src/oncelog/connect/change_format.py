"""Changes of PostgreSQL's tables as records: pure.

Values are JSON. Of the columns' types, whole numbers, floats, booleans and JSON are written as such; all others as the
text that PostgreSQL shows: numeric keeps its digits, times are in UTC, bytea is hex. A float that JSON has no number
for (NaN, Infinity) is text too.

    format    value
    rows      a JSON object of the columns; none for a deleted row. A large value that was not changed is not in
              PostgreSQL's log: its field is left out, and named in the header `unchanged`
    debezium  Debezium's envelope {before, after, source, op, ts_ms, transaction}; a delete is followed by a record
              without a value. JSON is in strings, as Debezium has it

The key is a JSON object of the key columns. An update that changes the key is a delete of the old key and a change of
the new one. All records have headers: `op` (c create, u update, d delete, r read by a snapshot, t truncate), `txid`,
`lsn` (of the commit), `index` in the transaction, from 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from json.encoder import encode_basestring as quote
from typing import Final, NamedTuple, Protocol

from oncelog import __version__
from oncelog.connect.errors import Refused
from oncelog.connect.outbox import OutboxEvent
from oncelog.connect.pgoutput import UNCHANGED, Begin, Column, Relation, Values, lsn_text
from oncelog.connect.source import Header, SourceRecord, header

BOOLEAN: Final = 16
NUMBERS: Final = frozenset((20, 21, 23, 26))
FLOATS: Final = frozenset((700, 701))
JSON_TYPES: Final = frozenset((114, 3802))
BYTEA: Final = 17
_OPERATIONS: Final = {operation: header("op", operation) for operation in "cudrt"}
UNAVAILABLE: Final = '"__debezium_unavailable_value"'


def _boolean(text: str) -> str:
    return "true" if text == "t" else "false"


def _number(text: str) -> str:
    return text


def _float(text: str) -> str:
    return text if text[-1].isdigit() else quote(text)


def _encoder(type_oid: int, json_as_text: bool) -> Callable[[str], str]:
    if type_oid == BOOLEAN:
        return _boolean
    if type_oid in NUMBERS or (type_oid in JSON_TYPES and not json_as_text):
        return _number
    return _float if type_oid in FLOATS else quote


def _object(names: Iterable[str]) -> str:
    """A JSON object as a template for %."""
    return "{" + ",".join(name.replace("%", "%%") + "%s" for name in names) + "}"


class Table:
    """How the rows of a table are written. Made anew when the table changes."""

    def __init__(self, relation: Relation, topic: str, key: Sequence[str], *, json_as_text: bool = False) -> None:
        self.relation = relation
        self.topic = topic
        self.name = relation.full_name
        self._columns = [(f"{quote(c.name)}:", _encoder(c.type_oid, json_as_text)) for c in relation.columns]
        self._names = [column.name for column in relation.columns]
        self._key = [self._names.index(name) for name in key]
        self._encoders = [(at, encode) for at, (_, encode) in enumerate(self._columns) if encode is not _number]
        self._full_row = _object(name for name, _ in self._columns)
        self._full_key = _object(self._columns[at][0] for at in self._key)

    def encoded(self, values: Values) -> tuple[str, bytes | None]:
        """The row and the key, as `row` and `key` give them."""
        if None in values or UNCHANGED in values:
            return self.row(values), self.key(values)
        texts: list[str] = [*values]  # type: ignore[list-item]
        for at, encode in self._encoders:
            texts[at] = encode(texts[at])
        key = (self._full_key % tuple([texts[at] for at in self._key])).encode() if self._key else None
        return self._full_row % tuple(texts), key

    def row(self, values: Values, unchanged: str | None = None) -> str:
        """A JSON object. Values that are unknown are left out, or replaced."""
        parts = []
        for (name, encode), value in zip(self._columns, values, strict=True):
            if value is None:
                parts.append(name + "null")
            elif value is UNCHANGED:
                if unchanged is not None:
                    parts.append(name + unchanged)
            else:
                parts.append(name + encode(value))
        return "{" + ",".join(parts) + "}"

    def key(self, values: Values) -> bytes | None:
        """None for a table without a key."""
        if not self._key:
            return None
        parts = []
        for at in self._key:
            name, encode = self._columns[at]
            value = values[at]
            parts.append(name + ("null" if value is None else encode(value)))  # type: ignore[arg-type]
        return ("{" + ",".join(parts) + "}").encode()

    def fields(self, values: Values) -> dict[str, str | bytes | None]:
        """The columns as PostgreSQL shows them, and those of bytes as bytes."""
        found: dict[str, str | bytes | None] = {}
        for column, value in zip(self.relation.columns, values, strict=True):
            if value is not UNCHANGED:
                is_hex = column.type_oid == BYTEA and value is not None
                found[column.name] = bytes.fromhex(str(value).removeprefix("\\x")) if is_hex else value
        return found

    @property
    def key_columns(self) -> list[Column]:
        return [self.relation.columns[at] for at in self._key]

    def has_key(self) -> bool:
        return bool(self._key)

    def unchanged(self, values: Values) -> list[str]:
        return [name for name, value in zip(self._names, values, strict=True) if value is UNCHANGED]


class Transaction(NamedTuple):
    """What records say about the transaction that they are of."""

    txid: str
    lsn: int
    time_ms: int
    snapshot: int = 0
    """The generation of the snapshot, 0 for a change."""
    previous_lsn: int = 0
    """The end of the transaction before this one."""

    @classmethod
    def of(cls, begin: Begin, previous_lsn: int) -> Transaction:
        return cls(str(begin.xid), begin.final_lsn, begin.time_ms, previous_lsn=previous_lsn)


class Framing(Protocol):
    """What puts a schema in front of keys and values, which are JSON before."""

    def framed_key(self, table: Table, key: bytes) -> bytes: ...

    def framed_value(self, table: Table, value: bytes) -> bytes: ...


class ChangeFormat:
    """Makes records of one transaction after the other."""

    def __init__(self, value_format: str, connector: str, database: str, framing: Framing | None = None) -> None:
        self.is_debezium = value_format == "debezium"
        self._framing = framing
        self._connector, self._database = connector, database
        self._transaction = Transaction("", 0, 0)
        self.change_lsn = 0
        """Where in PostgreSQL's log the next change is."""
        self._headers: list[Header] = []
        self._index = 0
        self._index_by_table: dict[str, int] = {}

    def begin(self, transaction: Transaction, first_index: int = 0) -> None:
        self._transaction = transaction
        self.change_lsn = transaction.lsn
        self._index = first_index
        self._index_by_table = {}
        self._headers = [header("txid", transaction.txid), header("lsn", lsn_text(transaction.lsn))]
        if transaction.snapshot:
            self._headers.append(header("snapshot", transaction.snapshot))

    def insert(self, table: Table, new: Values, operation: str = "c") -> list[SourceRecord]:
        if self.is_debezium:
            return [self._change(table, operation, table.key(new), None, new)]
        row, key = table.encoded(new)
        return [self._record(table, key, row.encode(), operation)]

    def update(self, table: Table, old: Values | None, new: Values) -> list[SourceRecord]:
        self._require_key(table, "an update")
        if old is not None and len(old) == len(new) and table.relation.identity == "f":
            new = [before if after is UNCHANGED else after for before, after in zip(old, new, strict=True)]
        before = old if old is not None and table.relation.identity == "f" else None
        old_key = None if old is None else table.key(old)
        new_key = table.key(new)
        if old is None or old_key == new_key:
            return [self._change(table, "u", new_key, before, new)]
        return [*self.delete(table, old), self._change(table, "c", new_key, None, new)]

    def delete(self, table: Table, old: Values) -> list[SourceRecord]:
        self._require_key(table, "a delete")
        key = table.key(old)
        removed = self._change(table, "d", key, old, None)
        return [removed, self._record(table, key, None, "d")] if self.is_debezium else [removed]

    def truncate(self, table: Table, partitions: int) -> list[SourceRecord]:
        """One for each partition: it concerns all keys."""
        value = self._envelope(table, "t", None, None) if self.is_debezium else None
        return [self._record(table, b"{}", value, "t", partition=number) for number in range(partitions)]

    def event(self, event: OutboxEvent) -> SourceRecord:
        headers = [*event.headers, *self._headers, ("index", b"%d" % self._index)]
        self._index += 1
        partition = 0 if event.key is None else None
        return SourceRecord(event.topic, event.key, event.value, headers, self._transaction.time_ms, partition)

    def _require_key(self, table: Table, what: str) -> None:
        if not table.has_key():
            raise Refused(
                f"{what} in {table.name}, which has no primary key and no replica identity by an index, so that nobody "
                f"can say which row is meant. Add one (alter table {table.name} add primary key ...), or take the "
                "table out of the publication"
            )

    def _change(
        self, table: Table, operation: str, key: bytes | None, old: Values | None, new: Values | None
    ) -> SourceRecord:
        if self.is_debezium:
            return self._record(table, key, self._envelope(table, operation, old, new), operation)
        value = None if new is None else table.row(new).encode()
        missing = table.unchanged(new) if new is not None and UNCHANGED in new else []
        return self._record(table, key, value, operation, missing)

    def _record(
        self,
        table: Table,
        key: bytes | None,
        value: bytes | None,
        operation: str,
        unchanged: Sequence[str] = (),
        partition: int | None = None,
    ) -> SourceRecord:
        headers = [_OPERATIONS[operation], *self._headers, ("index", b"%d" % self._index)]
        if unchanged:
            headers.append(header("unchanged", ",".join(unchanged)))
        self._index += 1
        if self._framing is not None:
            # The key of a truncate names no row, and fits no schema of keys.
            key = key if key is None or operation == "t" else self._framing.framed_key(table, key)
            value = None if value is None else self._framing.framed_value(table, value)
        if partition is None and key is None:
            partition = 0  # changes of a table without a key stay in their order
        return SourceRecord(table.topic, key, value, headers, self._transaction.time_ms, partition)

    def _envelope(self, table: Table, operation: str, old: Values | None, new: Values | None) -> bytes:
        transaction = self._transaction
        order = self._index_by_table[table.name] = self._index_by_table.get(table.name, 0) + 1
        before = "null" if old is None else table.row(old, UNAVAILABLE)
        after = "null" if new is None else table.row(new, UNAVAILABLE)
        lsn, previous = self.change_lsn, transaction.previous_lsn
        sequence = quote(f'["{previous}","{lsn}"]' if previous else f'[null,"{lsn}"]')
        source = (
            f'{{"version":{quote(__version__)},"connector":"postgresql","name":{quote(self._connector)},'
            f'"ts_ms":{transaction.time_ms},"snapshot":"{"true" if transaction.snapshot else "false"}",'
            f'"db":{quote(self._database)},"schema":{quote(table.relation.schema)},'
            f'"table":{quote(table.relation.name)},"txId":{transaction.txid or "null"},"lsn":{lsn},'
            f'"sequence":{sequence}}}'
        )
        identity = f'{{"id":"{transaction.txid}:{transaction.lsn}","total_order":{self._index + 1},'
        return (
            f'{{"before":{before},"after":{after},"source":{source},"op":"{operation}",'
            f'"ts_ms":{int(time.time() * 1000)},"transaction":{identity}"data_collection_order":{order}}}}}'
        ).encode()


def identity_columns(columns: Sequence[Column]) -> list[str]:
    return [column.name for column in columns if column.is_identity]


def key_columns(relation: Relation, primary: Sequence[str]) -> list[str]:
    """What the key of a row is made of, in snapshot and stream alike; empty for a table without a key.

    That is the primary key, wherever a delete has its columns. A delete has the columns of the replica identity: by
    default the primary key itself, with "full" all, with an index those of the index. Without an identity there are no
    updates and deletes.
    """
    identity = [] if relation.identity == "f" else identity_columns(relation.columns)
    published = {column.name for column in relation.columns}
    if primary and set(primary) <= (set(identity) or published):
        return [column.name for column in relation.columns if column.name in primary]
    return identity
