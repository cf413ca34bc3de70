"""A sink into tables of a database: what SQLite and PostgreSQL have in common.

Two tables of its own, made on first use:

    oncelog_sink_offsets(sink, topic, part, topic_id, next_offset, owner, instance)
    oncelog_dead_letters(sink, topic, part, record_offset, failed_at, error, record_key, record_value, headers)

A batch is one transaction. If the database refuses a row (a constraint, a value that does not fit), the batch is rolled
back and written again record by record, each in a savepoint: this finds the record at fault, which then stops the
connector or becomes a row of the dead letters, in the transaction of its batch.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, NamedTuple

from oncelog.client import ConsumerRecord, TopicPartition
from oncelog.connect import row_changes
from oncelog.connect.collector import paused_collector
from oncelog.connect.errors import BadRecord, Fenced, Refused
from oncelog.connect.finding import Finding
from oncelog.connect.identifiers import quoted, quoted_table
from oncelog.connect.row_changes import JsonText, RowChange, TablePlan, Unusable
from oncelog.connect.schema_records import SchemaRecords
from oncelog.connect.settings import SinkSettings
from oncelog.connect.sink import Batch, Claimed, Instance, Move, Start
from oncelog.connect.sink_records import RecordColumns
from oncelog.core.failpoints import hit

OFFSETS_TABLE: Final = "oncelog_sink_offsets"
DEAD_LETTERS_TABLE: Final = "oncelog_dead_letters"
_AT_PARTITION: Final = "where sink = ? and topic = ? and part = ?"


class RowRefused(Exception):
    """The database does not take a row, and will not take it next time."""


class TableWrites(NamedTuple):
    """A `TablePlan`, with its rows as the database takes them."""

    empties: bool
    deletes: list[tuple[Any, ...]]
    writes: list[tuple[tuple[str, ...], Any]]
    """What `_encode` has made of rows, by their columns."""
    needed: Sequence[tuple[Any, ...]]


Prepared = dict[str, TableWrites]
"""By table."""


class TableFacts(NamedTuple):
    columns: frozenset[str]
    """Those that may be written."""
    generated: frozenset[str]
    """Those that the database fills."""
    key: tuple[str, ...]
    required: frozenset[str] = frozenset()
    """Those that a new row must have."""
    json: frozenset[str] = frozenset()
    """Those whose type is JSON."""
    unique: frozenset[frozenset[str]] | None = None
    """Columns with a unique index that an upsert can use. None where that is not known, of views."""

    @property
    def of_json(self) -> frozenset[str]:
        """The columns whose values are written as JSON, without those of the key, which are compared as they are."""
        return self.json - set(self.key)


class DatabaseSink(ABC):
    binary_type: ClassVar[str]
    row_lock: ClassVar[str]

    def __init__(self, settings: SinkSettings, instance: Instance) -> None:
        self.settings = settings
        self._instance = instance
        self._owners: dict[TopicPartition, int] = {}
        self._facts: dict[str, TableFacts] = {}
        self._schemas = None if settings.schema_registry is None else SchemaRecords(settings.schema_registry)

    # What differs between databases

    @abstractmethod
    def _execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """One statement with ? for values. Returns the rows, if it has any."""

    @abstractmethod
    def _transaction(self) -> Any:
        """A context manager: commits at the end of the block, rolls back when it raises.

        What the database says about rows is raised as RowRefused.
        """

    @abstractmethod
    def _table_facts(self, table: str) -> TableFacts | None:
        """None if there is no such table."""

    def _encode(self, rows: Sequence[Collection[Any]]) -> Any:
        """Rows as the methods below take them. Does not use the connection. May raise RowRefused."""
        return rows

    @abstractmethod
    def _insert(self, table: str, columns: tuple[str, ...], rows: Any) -> None: ...

    @abstractmethod
    def _upsert(self, table: str, columns: tuple[str, ...], key: tuple[str, ...], rows: Any) -> None: ...

    @abstractmethod
    def _update_or_insert(self, table: str, columns: tuple[str, ...], key: tuple[str, ...], rows: Any) -> None:
        """For rows that leave out a required column: databases check that before they look whether the row is there."""

    @abstractmethod
    def _delete(self, table: str, key: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None: ...

    @abstractmethod
    def _count(self, table: str, key: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> int:
        """How many of these keys the table has."""

    @abstractmethod
    def close(self) -> None: ...

    def _cut_off_predecessor(self) -> None:  # noqa: B027  # not every database can
        """End what an older instance has open: one that is paused in a transaction would hold its locks for ever."""

    def check_rights_on(self, table: str) -> Iterator[Finding]:
        """What the user may not do with a table, whether it is there or not."""
        yield from ()

    def check_rights(self) -> Iterator[Finding]:
        """What the user may not do with the sink's own tables."""
        yield from ()

    def _rolled_back(self) -> None:  # noqa: B027  # most databases have nothing to forget
        """What was made in the transaction, or since the savepoint, is gone."""

    # The sink

    def claim(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, Claimed]:
        if not self._instance.claimed:
            self._cut_off_predecessor()
        for partition in starts:
            self.facts(self._table_of(partition.topic))
        with self._transaction():
            self._make_tables()
            claimed = {}
            for partition, start in sorted(starts.items()):
                claimed[partition], self._owners[partition] = self._claim(partition, start)
        self._instance.claimed.update(claimed)
        return claimed

    def _make_tables(self) -> None:
        self._execute(
            f"create table if not exists {OFFSETS_TABLE} (sink text not null, topic text not null, "
            "part integer not null, topic_id text not null, next_offset bigint not null, owner bigint not null, "
            "instance text not null, primary key (sink, topic, part))"
        )
        self._execute(
            f"create table if not exists {DEAD_LETTERS_TABLE} (sink text not null, topic text not null, "
            "part integer not null, record_offset bigint not null, failed_at timestamp default current_timestamp, "
            f"error text not null, record_key {self.binary_type}, record_value {self.binary_type}, "
            "headers text not null, primary key (sink, topic, part, record_offset))"
        )

    def _claim(self, partition: TopicPartition, start: Start) -> tuple[Claimed, int]:
        place = (self.settings.name, partition.topic, partition.partition)
        self._execute(
            f"insert into {OFFSETS_TABLE} (sink, topic, part, topic_id, next_offset, owner, instance) "
            "values (?, ?, ?, ?, ?, 0, ?) on conflict do nothing",
            (*place, start.topic_id, start.offset, self._instance.id),
        )
        [(next_offset, topic_id, owner, instance)] = self._execute(
            f"select next_offset, topic_id, owner, instance from {OFFSETS_TABLE} {_AT_PARTITION} {self.row_lock}",
            place,
        )
        if partition in self._instance.claimed and instance != self._instance.id:
            raise self._fenced(partition)
        self._execute(
            f"update {OFFSETS_TABLE} set owner = ?, instance = ? {_AT_PARTITION}",
            (owner + 1, self._instance.id, *place),
        )
        return Claimed(next_offset, topic_id), owner + 1

    def verify(self) -> None:
        query = f"select topic, part, owner from {OFFSETS_TABLE} where sink = ?"
        owners = {
            TopicPartition(topic, part): owner for topic, part, owner in self._execute(query, [self.settings.name])
        }
        for partition, owner in self._owners.items():
            if owners.get(partition) != owner:
                raise self._fenced(partition)

    def write(self, batch: Batch) -> int:
        try:
            with self._transaction():
                self._write_rows(batch.records, batch.prepared)
                hit("sink.after_rows")
                self._move_all(batch.moves)
                hit("sink.after_offsets")
        except (RowRefused, Unusable):
            return self._write_singly(batch)
        hit("sink.after_commit")
        return 0

    def _write_singly(self, batch: Batch) -> int:
        try:
            return self._write_in_savepoints(batch)
        except RowRefused as error:
            places = ", ".join(f"{place} offsets {move.old} to {move.new - 1}" for place, move in batch.moves.items())
            raise BadRecord(
                f"each record of {places} can be written, and together they cannot be committed: {error}. A constraint "
                "that is checked at the commit does not say which record it objects to; make it not deferrable to know"
            ) from error

    def _write_in_savepoints(self, batch: Batch) -> int:
        failed = 0
        with self._transaction():
            for record in batch.records:
                try:
                    with self._savepoint():
                        self._write_rows([record])
                except (RowRefused, Unusable) as error:
                    self._give_up(record, error)
                    failed += 1
            self._move_all(batch.moves)
            hit("sink.after_dead_letters")
        return failed

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        self._execute("savepoint one_record")
        try:
            yield
        except BaseException:
            self._execute("rollback to savepoint one_record")
            self._rolled_back()
            raise
        finally:
            self._execute("release savepoint one_record")

    def _give_up(self, record: ConsumerRecord, error: Exception) -> None:
        place = f"{record.topic}-{record.partition} offset {record.offset}"
        if self.settings.errors == "fail":
            raise BadRecord(
                f"the record at {place} cannot be written: {error}. Mend the table or the record; errors = "
                f'"dead-letters" puts such records into the table {DEAD_LETTERS_TABLE} and goes on'
            ) from error
        headers = [[name, None if value is None else value.decode("latin-1")] for name, value in record.headers]
        self._execute(
            f"insert into {DEAD_LETTERS_TABLE} (sink, topic, part, record_offset, error, record_key, record_value, "
            "headers) values (?, ?, ?, ?, ?, ?, ?, ?) on conflict (sink, topic, part, record_offset) do update set "
            "failed_at = current_timestamp, error = excluded.error, record_key = excluded.record_key, "
            "record_value = excluded.record_value, headers = excluded.headers",
            (self.settings.name, record.topic, record.partition, record.offset, str(error).replace("\0", ""),
             record.key, record.value, json.dumps(headers)),
        )  # fmt: skip

    def _move_all(self, moves: Mapping[TopicPartition, Move]) -> None:
        for partition, move in sorted(moves.items()):
            self._move(partition, move)

    def _move(self, partition: TopicPartition, move: Move) -> None:
        moved = self._execute(
            f"update {OFFSETS_TABLE} set next_offset = ? {_AT_PARTITION} and owner = ? and next_offset = ? "
            "returning owner",
            (move.new, self.settings.name, partition.topic, partition.partition, self._owners[partition], move.old),
        )
        if not moved:
            raise self._fenced(partition)

    def _fenced(self, partition: TopicPartition) -> Fenced:
        return Fenced(
            f"another instance of {self.settings.name} has taken over {partition}, or its row in {OFFSETS_TABLE} was "
            "changed by hand. This one stops; what it had not committed was rolled back"
        )

    # Rows

    def prepare(self, records: Sequence[ConsumerRecord]) -> Prepared | None:
        """None if that needs the database, or if a record cannot be used: `write` finds out which."""
        if isinstance(records, RecordColumns) and self._tables_claimed() <= self._facts.keys():
            with contextlib.suppress(Unusable, RowRefused), paused_collector():
                return self._prepared(records)
        return None

    def _tables_claimed(self) -> set[str]:
        return {self._table_of(partition.topic) for partition in self._owners}

    def _write_rows(self, records: Sequence[ConsumerRecord], prepared: Prepared | None = None) -> None:
        for table, writes in (self._prepared(records) if prepared is None else prepared).items():
            self._apply(table, writes)

    def _prepared(self, records: Sequence[ConsumerRecord]) -> Prepared:
        return {table: self._encoded(table, plan) for table, plan in self._plans(records).items()}

    def _encoded(self, table: str, plan: TablePlan) -> TableWrites:
        facts = self.facts(table)
        writes = []
        for columns, found in plan.writes:
            rows = found
            if self.settings.format == "rows" and not facts.json.isdisjoint(columns):
                rows = row_changes.with_json_texts(columns, found, facts.of_json)
            writes.append((columns, self._encode(rows)))
        return TableWrites(plan.empties, plan.deletes, writes, plan.needed)

    def _plans(self, records: Sequence[ConsumerRecord]) -> dict[str, TablePlan]:
        if isinstance(records, RecordColumns) and self.settings.format == "rows" and self._schemas is None:
            parts = records.by_topic()
            found = {self._table_of(topic): self._plain_plan(topic, part) for topic, part in parts.items()}
            plans = {table: plan for table, plan in found.items() if plan is not None}
            if len(plans) == len(parts):  # neither is one of them not plain, nor have two of them the same table
                return plans
        changes: dict[str, list[RowChange]] = {}
        for record in records:
            table = self._table_of(record.topic)
            change = self._change(record, self.facts(table).of_json)
            if change is not None:
                changes.setdefault(table, []).append(change)
        return {table: self._plan(table, of_table) for table, of_table in changes.items()}

    def _change(self, record: ConsumerRecord, of_json: frozenset[str]) -> RowChange | None:
        if self._schemas is None:
            return row_changes.decode(record, self.settings.format, of_json)
        change = row_changes.decode(self._schemas.plain(record), self.settings.format, of_json)
        row = None if change is None or self.settings.format != "rows" else change.row
        texts = [] if row is None else [name for name in of_json if type(row.get(name)) is str]
        if row is not None and texts and self._schemas.has_json_in_texts(record):
            row.update({name: JsonText(row[name]) for name in texts})
        return change

    def _plain_plan(self, topic: str, records: RecordColumns) -> TablePlan | None:
        facts = self.facts(self._table_of(topic))
        if self.settings.mode == "append":
            plan = row_changes.plan_plain_appends(records, facts.of_json)
        else:
            is_single = len(facts.key) == 1
            plan = row_changes.plan_plain_upserts(records, facts.key[0], facts.of_json) if is_single else None
        known = plan is not None and all(facts.columns.issuperset(columns) for columns, _ in plan.writes)
        return plan if known else None

    def _table_of(self, topic: str) -> str:
        return self.settings.table.replace("{topic}", topic)

    def facts(self, table: str) -> TableFacts:
        if table not in self._facts:
            found = self._table_facts(table)
            if found is None:
                raise Refused(
                    f"there is no table {table}: make it, with the columns that the records have",
                    f"create table {quoted_table(table)} (...{self._key_of_new_table()});",
                )
            if self.settings.mode == "upsert":
                found = found._replace(key=self.settings.key or found.key)
                self._require_key(table, found)
            self._facts[table] = found
        return self._facts[table]

    def _key_of_new_table(self) -> str:
        if self.settings.mode == "append":
            return ""
        return f", primary key ({', '.join(map(quoted, self.settings.key)) or '...'})"

    def _require_key(self, table: str, facts: TableFacts) -> None:
        if not facts.key:
            raise Refused(
                f'table {table} has no primary key, by which rows are found. With key = ["..."] they are found by '
                'columns that have a unique index, with mode = "append" none is needed',
                f"alter table {quoted_table(table)} add primary key (...);",
            )
        unknown = [name for name in facts.key if name not in facts.columns | facts.generated]
        if unknown:
            raise Refused(f"table {table} has no column {unknown[0]}, which key names")
        if facts.unique is not None and frozenset(facts.key) not in facts.unique:
            columns = ", ".join(map(quoted, facts.key))
            name = quoted("_".join((table.rpartition(".")[2], *facts.key, "key")))
            raise Refused(
                f"rows of table {table} are found by {', '.join(facts.key)}, and there is no unique index of exactly "
                "these columns that holds for all rows at once (not partial, not deferrable)",
                f"create unique index {name} on {quoted_table(table)} ({columns});",
            )

    def _plan(self, table: str, changes: list[RowChange]) -> TablePlan:
        facts = self.facts(table)
        for change in changes:
            if change.empties and self._partitions_of(change.record.topic) > 1:
                raise Unusable(
                    "it empties the table, which has no meaning between the partitions of a topic: only topics with "
                    "one partition can carry it"
                )
            if change.row is not None and not change.row.keys() <= facts.columns:
                self._check_columns(table, change.row, facts)
        if self.settings.mode == "append":
            return row_changes.plan_appends(changes)
        # What the table has no column for is not missing in it.
        known = (c._replace(unchanged=c.unchanged & facts.columns) if c.unchanged else c for c in changes)
        return row_changes.plan_upserts(known, facts.key)

    def _partitions_of(self, topic: str) -> int:
        return sum(1 for partition in self._owners if partition.topic == topic)

    def _check_columns(self, table: str, row: row_changes.Row, facts: TableFacts) -> None:
        """Take out what the table does not have, where that is allowed."""
        for name in row_changes.unknown_columns(row, facts.columns):
            if name not in facts.generated and self.settings.unknown_fields == "fail":
                self._facts.pop(table, None)
                column = f"{quoted(name)} {row_changes.sql_type(row[name])}"
                raise Unusable(
                    f"table {table} has no column for the field {name}: alter table {quoted_table(table)} add column "
                    f'{column}; or set unknown_fields = "ignore"'
                )
            del row[name]

    def _apply(self, table: str, changes: TableWrites) -> None:
        facts = self.facts(table)
        if changes.empties:
            self._execute(f"delete from {quoted_table(table)}")
        if changes.deletes:
            self._delete(table, facts.key, changes.deletes)
        if changes.needed and self._count(table, facts.key, changes.needed) < len(changes.needed):
            raise RowRefused(row_changes.NO_ROW)
        for columns, rows in changes.writes:
            if self.settings.mode == "append":
                self._insert(table, columns, rows)
            elif facts.required.issubset(columns):
                self._upsert(table, columns, facts.key, rows)
            else:
                self._update_or_insert(table, columns, facts.key, rows)


def plain(value: Any) -> Any:
    """A JSON value as a database takes it: objects and lists as JSON text."""
    return json.dumps(value) if isinstance(value, dict | list) else value
