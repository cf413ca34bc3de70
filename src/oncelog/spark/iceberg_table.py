"""A table of Apache Iceberg as the target of a Spark sink: see `lake_sink` for the steps.

What the table says of a sink S is its property `oncelog.sink.S`, JSON of owner number, query and last batch (`tables`
is what that read of topics as tables). It is set in the commit that adds the files, and stays when snapshots expire;
the summary of the snapshot has it too, for people.

A commit names the snapshot that it follows, and the catalog refuses it if there is another one by then. So every commit
of a sink makes a snapshot, a claim or an empty batch too. pyiceberg would build a refused commit anew and repeat it,
also if another driver has written the same batch: here that is off, and a commit is repeated after a look at the
property.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator, Mapping
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
from oncelog.spark.source_options import OptionError
from oncelog.spark.written_batches import LastBatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

RETRIES_PROPERTY: Final = "commit.retry.num-retries"
COMMIT_ATTEMPTS: Final = 20
LONGEST_PAUSE_S: Final = 2.0
CHUNK_BYTES: Final = 64 << 20
"""A task has so much in memory before it writes a file."""


def write_stream_to_iceberg(
    frame: DataFrame,
    *,
    table: str,
    sink: str,
    catalog: str = "default",
    catalog_properties: Mapping[str, str] | None = None,
    on_new_checkpoint: str | None = None,
) -> DataStreamWriter:
    """A `DataStreamWriter` that appends each micro-batch to a table of Iceberg, with its number in the same commit.

    `table` is NAMESPACE.NAME. The catalog is found as pyiceberg finds it: by its name in pyiceberg's configuration, or
    by `catalog_properties` such as type, uri and warehouse. A table that is not there is created, without partitions.
    `sink` names this pipeline in the table for ever. A new checkpoint is refused over rows of another one, unless
    `on_new_checkpoint` is "reprocess"; see `write_stream`. Needs `pip install 'oncelog[iceberg]'`, also on executors.
    """
    _package()
    new_checkpoint = checked_options(frame, sink, on_new_checkpoint, "write_stream_to_iceberg")
    target = IcebergTarget(table, sink, arrow_schema(frame), catalog, dict(catalog_properties or {}))
    target.create()
    return lake_writer(frame, target, sink, new_checkpoint)


def _package() -> Any:
    try:
        import pyiceberg.catalog
    except ImportError:
        raise OptionError("the package pyiceberg is missing: pip install 'oncelog[iceberg]'") from None
    return pyiceberg.catalog


@dataclass(frozen=True)
class IcebergTarget:
    name: str
    sink: str
    schema: pa.Schema
    """Of the rows."""
    catalog: str
    properties: dict[str, str] = field(repr=False)
    """They may have secrets in them."""

    def create(self) -> None:
        """Create the table, or see that it fits the rows."""
        from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible

        catalog = self._open()
        namespace, _, name = self.name.rpartition(".")
        if not namespace or not name:
            raise OptionError(f"table is {self.name!r}: give it as NAMESPACE.NAME")
        catalog.create_namespace_if_not_exists(namespace)
        table = catalog.create_table_if_not_exists(self.name, schema=self.schema)
        try:
            _check_pyarrow_schema_compatible(table.schema(), self.schema, format_version=table.format_version)
        except ValueError as error:
            raise OptionError(f"the rows do not fit {self.name}: {error}") from None

    def read(self, query: str) -> Version:
        table = self._open().load_table(self.name)
        text = table.properties.get(self._property)
        # Only in memory, for the commits made with this object.
        properties = {**table.metadata.properties, RETRIES_PROPERTY: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        return Version(None if text is None else state_for(query, text), table)

    def file_writer(self, version: Version) -> FileWriter:
        return IcebergFiles(version.table.metadata, version.table.io, self.schema)

    def claim(self, version: Version, query: str, owner: int) -> None:
        last = version.state.last if version.state is not None and version.state.is_of_query else LastBatch()
        self._commit(version, state_text(owner, query, last), [], {})

    def commit(
        self, version: Version, query: str, owner: int, batch: LastBatch, files: list[bytes], read_to: str
    ) -> None:
        text, note = state_text(owner, query, batch), {"oncelog.input": read_to}
        for attempt in range(COMMIT_ATTEMPTS):
            try:
                return self._commit(version, text, files, note)
            except CommitRefused:
                newer = self.read(query)
                if newer.state != version.state or _shape(newer) != _shape(version) or attempt + 1 == COMMIT_ATTEMPTS:
                    raise
                version = newer
                time.sleep(min(0.01 * 2**attempt, LONGEST_PAUSE_S))
        return None

    def _commit(self, version: Version, text: str, files: list[bytes], note: dict[str, str]) -> None:
        from pyiceberg.exceptions import CommitFailedException

        transaction = version.table.transaction()
        transaction.set_properties({self._property: text})
        summary = {self._property: text, **note}
        with transaction.update_snapshot(snapshot_properties=summary).fast_append() as append:
            for file in files:
                append.append_data_file(pickle.loads(file))
        try:
            transaction.commit_transaction()
        except CommitFailedException as error:
            raise CommitRefused(str(error)) from error

    @property
    def _property(self) -> str:
        return f"oncelog.sink.{self.sink}"

    def _open(self) -> Any:
        return _package().load_catalog(self.catalog, **self.properties)


def state_text(owner: int, query: str, last: LastBatch) -> str:
    state = {"owner": owner, "query": query, "batch": last.number, "plan": last.plan}
    return json.dumps(state if last.tables is None else {**state, "tables": last.tables})


def state_for(query: str, text: str) -> SinkState:
    state = json.loads(text)
    is_of_query = state["query"] == query
    last = LastBatch(state["batch"], state.get("plan"), state.get("tables")) if is_of_query else LastBatch()
    return SinkState(state["owner"], is_of_query, last)


def _shape(version: Version) -> tuple[int, int]:
    """What files are written for."""
    return version.table.metadata.current_schema_id, version.table.metadata.default_spec_id


@dataclass(frozen=True)
class IcebergFiles:
    """Writes data files for a table, in a task."""

    metadata: Any
    io: Any
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch], name: str) -> Iterator[bytes]:
        """pyiceberg makes up names of files that are used once; `name` is not needed."""
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        for rows in self._chunks(batches):
            for file in _dataframe_to_data_files(self.metadata, rows, self.io):
                yield pickle.dumps(file)

    def _chunks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        import pyarrow as pa

        waiting: list[pa.Table] = []
        for batch in batches:
            waiting.append(pa.Table.from_batches([batch]).cast(self.schema))
            if sum(table.nbytes for table in waiting) >= CHUNK_BYTES:
                yield pa.concat_tables(waiting)
                waiting = []
        if sum(table.num_rows for table in waiting):
            yield pa.concat_tables(waiting)
