"""A table of Delta Lake as the target of a Spark sink: see `lake_sink` for the steps.

What the table says of a sink S is kept in Delta's own transaction identifiers (appId, version), set by its commits:

    oncelog:S            the owner number
    oncelog:S:Q          the last batch of the query Q
    oncelog:S:Q:owner    the owner number with which Q has claimed the sink
    oncelog:S:Q:plan     when that batch was planned
    oncelog:S:Q:tables   a number for what it read of topics as tables, 0 for none; its commit has the text, for a while

Every commit sets them all. So Delta refuses one if another driver has committed since the table was read; and a table
with `delta.setTransactionRetentionDuration`, which forgets identifiers that have no time or an old one, keeps those of
a sink that writes. The log of Delta is written by deltalake, files by pyarrow in the tasks.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from oncelog.spark.lake_sink import (
    CommitRefused,
    FileWriter,
    SinkState,
    Version,
    arrow_schema,
    checked_options,
    lake_writer,
)
from oncelog.spark.planning import bounds_number
from oncelog.spark.source_options import OptionError
from oncelog.spark.written_batches import LastBatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

MAX_OPEN_FILES: Final = 64
"""Of one task, which has a file for each value of the partition columns."""
UNSAFE_OPTIONS: Final = frozenset(("aws_s3_allow_unsafe_rename", "mount_allow_unsafe_rename", "allow_unsafe_rename"))
"""Of object stores, and of mounted and local folders."""
RECENT_COMMITS: Final = 20
"""Where the text of the tables that a batch has read is looked for: after it come claims, and commits of others."""
_TRUE: Final = frozenset(("1", "true", "on", "yes", "y"))
"""As deltalake reads them, in any case."""
TYPES: Final = frozenset(
    ("string", "long", "integer", "short", "byte", "float", "double", "decimal", "boolean", "binary", "date",
     "timestamp", "timestamp_ntz")
)  # fmt: skip
PARTITION_TYPES: Final = frozenset(("string", "long", "integer", "short", "byte", "boolean", "date"))
FEATURES: Final = frozenset(
    ("appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "generatedColumns",
     "invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck")
)  # fmt: skip
"""Features of a table that need nothing of a writer that appends, as long as the table does not make use of them in a
way that `_refuse_what_files_cannot_keep` finds."""


def write_stream_to_delta(
    frame: DataFrame,
    *,
    table: str,
    sink: str,
    partition_by: Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    on_new_checkpoint: str | None = None,
) -> DataStreamWriter:
    """A `DataStreamWriter` that appends each micro-batch to a table of Delta Lake, with its number in the same commit.

    `table` is a path or URL, `storage_options` are those of the package deltalake. A table that is not there is
    created, with `partition_by`. `sink` names this pipeline in the table for ever. A new checkpoint is refused over
    rows of another one, unless `on_new_checkpoint` is "reprocess"; see `write_stream`. Needs
    `pip install 'oncelog[delta]'`, also on executors.
    """
    _package()
    new_checkpoint = checked_options(frame, sink, on_new_checkpoint, "write_stream_to_delta")
    _refuse_unsafe_storage(storage_options or {})
    target = DeltaTarget(table, sink, arrow_schema(frame), dict(storage_options or {}))
    target.create(json.loads(frame.schema.json()), list(partition_by))
    return lake_writer(frame, target, sink, new_checkpoint)


def _package() -> Any:
    try:
        import deltalake
    except ImportError:
        raise OptionError("the package deltalake is missing: pip install 'oncelog[delta]'") from None
    return deltalake


def _refuse_unsafe_storage(options: Mapping[str, str]) -> None:
    for name, value in (*options.items(), *os.environ.items()):
        if name.lower() in UNSAFE_OPTIONS and str(value).lower() in _TRUE:
            raise OptionError(f"{name} lets two writers make the same commit, and one of them is lost: leave it out")


@dataclass(frozen=True)
class DeltaTarget:
    name: str
    sink: str
    schema: pa.Schema
    """Of the rows."""
    options: dict[str, str] = field(repr=False)
    """They may have secrets in them."""

    def create(self, rows: dict[str, Any], partition_by: list[str]) -> None:
        """Create the table, or see that it fits the rows (a schema as Spark and Delta write it)."""
        for column in rows["fields"]:
            if not (leaves := set(_leaf_types(column["type"]))) <= TYPES:
                raise OptionError(f"the column {column['name']} is of a type Delta does not have: {leaves - TYPES}")
        deltalake = _package()
        schema = deltalake.Schema.from_json(json.dumps(rows))
        deltalake.DeltaTable.create(
            self.name, schema, mode="ignore", partition_by=partition_by or None, storage_options=self.options
        )
        table = self._load()
        found = json.loads(table.schema().to_json())["fields"]
        _refuse_other_columns(self.name, rows["fields"], found)
        _refuse_what_files_cannot_keep(self.name, table, found)
        if partition_by and table.metadata().partition_columns != partition_by:
            raise OptionError(f"{self.name} is partitioned by {table.metadata().partition_columns}, not {partition_by}")

    def read(self, query: str) -> Version:
        table = self._load()
        owner = table.transaction_version(self._app())
        if owner is None:
            return Version(None, table)
        is_of_query = table.transaction_version(self._app(query, "owner")) == owner
        number = table.transaction_version(self._app(query)) if is_of_query else None
        if number is None:
            return Version(SinkState(owner, is_of_query, LastBatch()), table)
        plan = table.transaction_version(self._app(query, "plan"))
        tables = table.transaction_version(self._app(query, "tables"))
        last = LastBatch(number, plan, _text_of_tables(table, tables) if tables else None)
        return Version(SinkState(owner, is_of_query, last), table)

    def file_writer(self, version: Version) -> FileWriter:
        fields = version.table.schema().fields
        required = tuple(column.name for column in fields if not column.nullable and column.name in self.schema.names)
        partition_by = tuple(version.table.metadata().partition_columns)
        return DeltaFiles(self.name, self.options, self.schema, partition_by, required)

    def claim(self, version: Version, query: str, owner: int) -> None:
        # A query that reprocesses begins at its first batch again.
        last = version.state.last if version.state is not None and version.state.is_of_query else LastBatch()
        note = {"oncelog.sink": self.sink, "oncelog.owner": owner}
        self._commit(version, self._identifiers(query, owner, last), [], note)

    def commit(
        self, version: Version, query: str, owner: int, batch: LastBatch, files: list[bytes], read_to: str
    ) -> None:
        note = {
            "oncelog.sink": self.sink,
            "oncelog.query": query,
            "oncelog.batch": batch.number,
            "oncelog.input": read_to,
        }
        if batch.tables is not None:
            note["oncelog.tables"] = batch.tables
        self._commit(version, self._identifiers(query, owner, batch), files, note)

    def _identifiers(self, query: str, owner: int, last: LastBatch) -> dict[str, int]:
        tables = bounds_number(last.tables) if isinstance(last.tables, str) else last.tables or 0
        found = {
            self._app(): owner,
            self._app(query, "owner"): owner,
            self._app(query): last.number,
            self._app(query, "tables"): tables,
        }
        return found if last.plan is None else {**found, self._app(query, "plan"): last.plan}

    def _commit(self, version: Version, identifiers: dict[str, int], files: list[bytes], note: dict[str, Any]) -> None:
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, CommitProperties, Transaction

        now = int(time.time() * 1000)
        described = [json.loads(file) for file in files]
        added = [
            AddAction(f["path"], f["size"], f["values"], now, True, json.dumps({"numRecords": f["rows"]}))
            for f in described
        ]
        transactions = [Transaction(name, number, now) for name, number in identifiers.items()]
        properties = CommitProperties(custom_metadata=note, app_transactions=transactions)
        table = version.table
        columns = table.metadata().partition_columns
        try:
            table.create_write_transaction(added, "append", table.schema(), columns, commit_properties=properties)
        except CommitFailedError as error:
            raise CommitRefused(str(error)) from error

    def _app(self, *parts: str) -> str:
        return ":".join(("oncelog", self.sink, *parts))

    def _load(self) -> Any:
        return _package().DeltaTable(self.name, storage_options=self.options)


def _text_of_tables(table: Any, number: int) -> str | int:
    """The number itself where the commit that has the text is gone from the log, or far back."""
    texts = (commit.get("oncelog.tables") for commit in table.history(limit=RECENT_COMMITS))
    return next((text for text in texts if text is not None and bounds_number(text) == number), number)


def _leaf_types(of: Any) -> Iterator[str]:
    if isinstance(of, str):
        yield of.partition("(")[0]
        return
    for part in ("type", "elementType", "keyType", "valueType"):
        if part in of and not (part == "type" and of[part] in ("struct", "array", "map")):
            yield from _leaf_types(of[part])
    for column in of.get("fields", ()):
        yield from _leaf_types(column["type"])


def _refuse_other_columns(name: str, rows: list[dict[str, Any]], table: list[dict[str, Any]]) -> None:
    types = {column["name"]: _without_null(column["type"]) for column in table}
    for column in rows:
        wanted = types.get(column["name"])
        if wanted != _without_null(column["type"]):
            found = "has no such column" if wanted is None else f"has it as {json.dumps(wanted)}"
            raise OptionError(f"the rows have {column['name']} as {json.dumps(column['type'])}, and {name} {found}")
    given = {column["name"] for column in rows}
    for column in table:
        if column["name"] not in given and not column["nullable"]:
            raise OptionError(f"{name} needs a value in {column['name']}, which the rows do not have")


def _without_null(of: Any) -> Any:
    """A type without what says where it may be null, which differs between equal columns."""
    if isinstance(of, list):
        return [_without_null(part) for part in of]
    if isinstance(of, dict):
        left_out = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {key: _without_null(part) for key, part in of.items() if key not in left_out}
    return of


def _refuse_what_files_cannot_keep(name: str, table: Any, columns: list[dict[str, Any]]) -> None:
    """Tasks write files without a look at rules that the table has for its rows."""
    problems = [f"the table feature {f}" for f in table.protocol().writer_features or () if f not in FEATURES]
    settings = table.metadata().configuration
    problems += [f"the constraint {key}" for key in settings if key.startswith("delta.constraints.")]
    if settings.get("delta.columnMapping.mode", "none") != "none":
        problems.append("column mapping")
    problems += [f"{key} of {column['name']}" for column in columns for key in column["metadata"] if "delta." in key]
    types = {column["name"]: column["type"] for column in columns}
    for column in table.metadata().partition_columns:
        if types[column] not in PARTITION_TYPES:
            problems.append(f"the partition column {column}, of the type {types[column]}")
    if problems:
        raise OptionError(f"{name} has what this sink cannot write: {', '.join(problems)}")


@dataclass(frozen=True)
class DeltaFiles:
    """Writes Parquet files for a table, in a task."""

    uri: str
    options: dict[str, str] = field(repr=False)
    schema: pa.Schema
    partition_by: tuple[str, ...]
    required: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch], name: str) -> Iterator[bytes]:
        import pyarrow as pa
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        storage = PyFileSystem(DeltaStorageHandler(self.uri, self.options))
        opened: dict[tuple[Any, ...], _OpenFile] = {}
        count = 0
        for batch in batches:
            rows = pa.Table.from_batches([batch]).cast(self.schema)
            self._refuse_nulls(rows)
            for values, part in self._parts(rows):
                if values not in opened:
                    if len(opened) == MAX_OPEN_FILES:
                        yield from (file.close() for file in opened.values())
                        opened.clear()
                    named = dict(zip(self.partition_by, values, strict=True))
                    opened[values] = _OpenFile(storage, f"part-{name}-{count}.snappy.parquet", named, part.schema)
                    count += 1
                opened[values].write(part)
        yield from (file.close() for file in opened.values())

    def _refuse_nulls(self, rows: pa.Table) -> None:
        for name in self.required:
            if rows.column(name).null_count:
                raise ValueError(f"a row has no value in {name}, and {self.uri} needs one in every row")

    def _parts(self, rows: pa.Table) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
        """Rows by the values of the partition columns, which are not in the files."""
        import pyarrow.compute as pc

        if not self.partition_by:
            if rows.num_rows:
                yield (), rows
            return
        content = rows.drop_columns(list(self.partition_by))
        for found in rows.group_by(list(self.partition_by)).aggregate([]).to_pylist():
            chosen = None
            for column, value in found.items():
                data = rows.column(column)
                equal = pc.is_null(data) if value is None else pc.fill_null(pc.equal(data, value), False)
                chosen = equal if chosen is None else pc.and_(chosen, equal)
            yield tuple(_partition_text(found[column]) for column in self.partition_by), content.filter(chosen)


def _partition_text(value: Any) -> str | None:
    """As Delta's log has it: an empty text is null there."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None or value == "" else str(value)


class _OpenFile:
    def __init__(self, storage: Any, path: str, values: dict[str, str | None], schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._storage, self._path, self._values, self._rows = storage, path, values, 0
        self._stream = storage.open_output_stream(path)
        self._writer = pq.ParquetWriter(self._stream, schema, compression="snappy")

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)
        self._rows += rows.num_rows

    def close(self) -> bytes:
        self._writer.close()
        self._stream.close()
        size = self._storage.get_file_info([self._path])[0].size
        described = {"path": self._path, "size": size, "rows": self._rows, "values": self._values}
        return json.dumps(described).encode()
