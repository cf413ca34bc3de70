"""The first snapshot of a `postgres-source` connector by tasks of Spark: large tables, in one transaction of the log.

1. Take over the connector's transactional id and read its stored position, as the connector does at a start. Note that
   a snapshot was begun; make the slot, whose snapshot stays as long as its connection. Lock the tables: what moves
   their rows, as `vacuum full` does, would tear parts apart.
2. Each task reads a part of a table by a connection of its own, as of that snapshot, and makes records of the rows.
3. One transaction has all records and the position of the slot. The connector goes on from there.

If the driver dies before, nothing is visible, and the next start, here or of the connector, takes a new snapshot. If
the answer to the commit is lost, the stored position tells.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from oncelog.core import failpoints
from oncelog.spark.identity import Identity
from oncelog.spark.sink_options import SinkOptions, sink_options
from oncelog.spark.source_options import OptionError
from oncelog.spark.spark_session import refuse_unsafe
from oncelog.spark.transactor import DriverFenced, Transactor
from oncelog.spark.write_job import Written, run_write_job

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from oncelog.connect.published_tables import Part, Snapshot
    from oncelog.connect.settings import SourceSettings
    from oncelog.connect.source import SourceRecord, Stored
    from oncelog.connect.source_log import SourceLog

PART_PAGES: Final = 8192
"""64 MiB of a table with pages of 8 KiB."""
ROWS_AT_ONCE: Final = 5000
SCHEMA: Final = (
    "topic string, key binary, value binary, partition int, headers array<struct<key: string, value: binary>>"
)


def snapshot_postgres(
    spark: SparkSession,
    *,
    name: str,
    bootstrap_servers: str,
    kafka: Mapping[str, str] | None = None,
    part_pages: int = PART_PAGES,
    **settings: Any,
) -> Written | None:
    """Take the first snapshot of the `postgres-source` connector `name`, all of it in one transaction.

    `settings` are those of the connector in its file: url, publication and so on. Start the connector afterwards: it
    goes on where the snapshot was taken. Returns None, and does nothing, if the connector has its snapshot already.
    Needs `pip install 'oncelog[connect]'`, also on executors, which reach the database by themselves.
    """
    refuse_unsafe(spark)
    if part_pages < 1:
        raise OptionError(f"part_pages is {part_pages}: a part has at least one page")
    from oncelog.connect.kinds import open_source_log
    from oncelog.connect.settings import source_settings

    client = {**(kafka or {}), "bootstrap.servers": bootstrap_servers}
    given = source_settings({**settings, "name": name}, client)
    with closing(open_source_log(given)) as log:
        options = sink_options(
            bootstrap_servers=bootstrap_servers,
            transactional_id=log.group,
            transaction_timeout_ms=given.transaction_timeout_ms,
            compression_type=given.compression_type,
            max_request_size=given.max_request_size,
            kafka=kafka,
        )
        return BulkSnapshot(spark, given, log, options).take(part_pages)


class BulkSnapshot:
    def __init__(self, spark: SparkSession, settings: SourceSettings, log: SourceLog, options: SinkOptions) -> None:
        self._spark, self._settings, self._log, self._options = spark, settings, log, options
        self._written: Written | None = None

    def take(self, part_pages: int) -> Written | None:
        from oncelog.connect.postgres_source import PostgresSource
        from oncelog.connect.source import Stored

        self._log.take_over()
        with closing(PostgresSource(self._settings, self._log.partitions_of)) as source:
            resume = source.resume(self._log.read())
            if resume.snapshot is None:
                return None
            self._log.commit(Stored(0, resume.snapshot))
            with source.held_snapshot() as snapshot:
                parts = source.tables.parts(part_pages)
                for part in parts:
                    self._log.partitions_of(source.tables.table(part.relation).topic)
                failpoints.hit("spark.snapshot.begun")
                done = Stored(snapshot.position, resume.snapshot._replace(is_snapshot=False))
                return self._write(self._rows(snapshot, parts), done)

    def _rows(self, snapshot: Snapshot, parts: list[Part]) -> DataFrame:
        """A task for each part."""
        settings = self._settings

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from oncelog.connect.published_tables import read_part

            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from columns_of(read_part(settings, snapshot, parts[number]))

        return self._spark.range(0, len(parts), 1, max(1, len(parts))).mapInArrow(read, SCHEMA)

    def _write(self, rows: DataFrame, done: Stored) -> Written | None:
        transactor = Transactor(self._options)
        try:
            return transactor.run("snapshot", lambda identity: self._attempt(identity, rows, done))
        finally:
            transactor.close()

    def _attempt(self, identity: Identity, rows: DataFrame, done: Stored) -> Written | None:
        stored = self._log.read()
        if stored is None or not self._log.is_ours(stored):
            raise DriverFenced(f"another instance of {self._settings.name} has taken over: this snapshot is given up")
        if not stored.note.is_snapshot:
            return self._written  # the answer to its commit was lost
        self._written = run_write_job(rows, self._options, identity.client)
        failpoints.hit("spark.snapshot.written")
        identity.client.commit_offsets(self._log.group, self._log.offsets(done))
        identity.commit()
        failpoints.hit("spark.snapshot.committed")
        return self._written


def columns_of(records: Iterable[SourceRecord]) -> Iterator[pa.RecordBatch]:
    """Records as rows of the sink's columns, some thousand at a time."""
    import pyarrow as pa

    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    schema = pa.schema([("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary()),
                        ("partition", pa.int32()), ("headers", header)])  # fmt: skip
    source = iter(records)
    while taken := list(itertools.islice(source, ROWS_AT_ONCE)):
        columns = {
            "topic": [record.topic for record in taken],
            "key": [record.key for record in taken],
            "value": [record.value for record in taken],
            "partition": [record.partition for record in taken],
            "headers": [[{"key": k, "value": v} for k, v in record.headers] for record in taken],
        }
        yield pa.RecordBatch.from_pydict(columns, schema=schema)
