"""Sinks into tables of a data lake: the files of a micro-batch and its number are one commit of the table.

Theory of operation. Spark calls the sink in the driver for each micro-batch (`foreachBatch`), and may call it again for
one that is written: the table decides. It keeps, for each sink, the owner number, the query and its last batch, with
what that read of topics as tables if the query has state.

1. The first batch of a driver claims the sink by a commit without files: owner number + 1.
2. Each batch reads the table. Another owner number: a newer driver has taken over, this one stops. A batch that is
   there already is computed (sources and state depend on it) and thrown away (`written_batches`).
3. Tasks write files that nothing refers to yet, under names that are used once. Spark may run a task twice; it returns
   the files of those runs that count.
4. One commit of the driver adds these files and sets the batch number. The table format refuses it if what it says of
   this sink has changed since step 2, whoever else has written to the table meanwhile. If the outcome is not known, the
   table is read again.

`delta_table` and `iceberg_table` say how a table keeps this. Files that no commit names stay behind after a failure.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from oncelog.core import failpoints
from oncelog.spark.micro_batch import MicroBatch, running_batch
from oncelog.spark.resume import CannotResume, NewCheckpoint
from oncelog.spark.sink import drain, refuse_unsafe_checkpoint
from oncelog.spark.sink_options import SINK_TABLE
from oncelog.spark.source_options import OptionError
from oncelog.spark.spark_session import refuse_unsafe
from oncelog.spark.table_versions import TablesOfQuery
from oncelog.spark.transactor import DriverFenced
from oncelog.spark.written_batches import LastBatch, is_written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("oncelog.spark")
CLAIM_ATTEMPTS: Final = 10
SINK_NAME: Final = "letters, digits, dots, underscores and hyphens"

FileWriter = Callable[[Iterator["pa.RecordBatch"], str], Iterator[bytes]]
"""Runs in a task: writes rows to files whose names have the text in them, and describes each file for the commit."""


class CommitRefused(Exception):
    """The table did not take a commit, as far as its library can tell."""


class SinkState(NamedTuple):
    """What a table says of a sink, as a certain query sees it."""

    owner: int
    is_of_query: bool
    """Whether that query was the last one to claim the sink."""
    last: LastBatch


class Version(NamedTuple):
    """A table at one moment. A commit on it is refused if the state of the sink is another one by then."""

    state: SinkState | None
    table: Any


class LakeTable(Protocol):
    @property
    def name(self) -> str: ...

    def read(self, query: str) -> Version: ...

    def file_writer(self, version: Version) -> FileWriter: ...

    def claim(self, version: Version, query: str, owner: int) -> None:
        """Raises CommitRefused."""

    def commit(
        self, version: Version, query: str, owner: int, batch: LastBatch, files: list[bytes], read_to: str
    ) -> None:
        """Raises CommitRefused. `read_to` is for people who look at the history."""


@dataclass
class LakeSink:
    """The function given to `foreachBatch`."""

    spark: SparkSession
    table: LakeTable
    sink: str
    on_new_checkpoint: NewCheckpoint
    _owner: int | None = None
    _joined: TablesOfQuery = field(init=False)

    def __post_init__(self) -> None:
        self._joined = TablesOfQuery(self.spark)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        batch = running_batch(self.spark, frame, batch_id)
        refuse_unsafe_checkpoint(self.spark, batch)
        tables = self._joined.read_by(batch)
        version = self.owned_version(batch)
        if self.has(version, batch, tables):
            drain(frame)
        else:
            files = written_files(frame, self.table.file_writer(version))
            failpoints.hit("spark.lake.written")
            self.commit(version, batch, files, tables)
            failpoints.hit("spark.lake.committed")
        self._joined.renew(batch)

    def has(self, version: Version, batch: MicroBatch, tables: str | None) -> bool:
        """Whether the batch is in the table."""
        last = LastBatch() if version.state is None else version.state.last
        return is_written(batch, last, f"the table {self.table.name}", self.on_new_checkpoint, tables)

    def owned_version(self, batch: MicroBatch) -> Version:
        """The table as it is, in which the sink is this driver's. The first call claims it."""
        for _ in range(CLAIM_ATTEMPTS):
            version = self.table.read(batch.query_id)
            state = version.state
            if self._owner is not None and (state is None or state.owner != self._owner):
                raise self._fenced()
            if self._owner is not None and state is not None and state.is_of_query:
                return version
            self._refuse_new_checkpoint(state, batch)
            owner = 1 if state is None else state.owner + 1
            try:
                self.table.claim(version, batch.query_id, owner)
            except CommitRefused as refusal:
                logger.info("somebody else has changed the table, so sink %s claims it again: %s", self.sink, refusal)
                continue
            self._owner = owner
            failpoints.hit("spark.lake.claimed")
        raise RuntimeError(f"the sink {self.sink} could not be claimed: others write to {self.table.name} all the time")

    def commit(self, version: Version, batch: MicroBatch, files: list[bytes], tables: str | None) -> None:
        owner = self._owner
        if owner is None:
            raise RuntimeError("a sink is claimed before it commits")
        read_to = json.dumps({str(partition): offset for partition, offset in sorted(batch.end.items())})
        try:
            done = LastBatch(batch.batch_id, batch.planned_ms, tables)
            self.table.commit(version, batch.query_id, owner, done, files, read_to)
        except CommitRefused:
            state = self.table.read(batch.query_id).state
            if state is None or state.owner != owner:
                raise self._fenced() from None
            if state.last.number != batch.batch_id:
                raise
            logger.warning("batch %d is in %s, although its commit was refused", batch.batch_id, self.table.name)

    def _refuse_new_checkpoint(self, state: SinkState | None, batch: MicroBatch) -> None:
        if self.on_new_checkpoint is NewCheckpoint.REPROCESS:
            return
        choices = "Use the old checkpoint, another sink and table, or on_new_checkpoint='reprocess'"
        if state is not None and not state.is_of_query:
            raise CannotResume(
                f"the table {self.table.name} was last written by another query as the sink {self.sink}, and this is "
                f"the query {batch.query_id}: its checkpoint is a new one, and would write the same input again. "
                f"{choices}"
            )
        if state is None and batch.batch_id > 0:
            raise CannotResume(
                f"the table {self.table.name} knows nothing of the sink {self.sink}, and its checkpoint is at batch "
                f"{batch.batch_id}: the table was made again, or it is another one. {choices}, which goes on from there"
            )

    def _fenced(self) -> DriverFenced:
        return DriverFenced(
            f"another driver has taken over the sink {self.sink}: this one stops, and what it had not committed is not "
            f"in {self.table.name}"
        )


def checked_options(frame: DataFrame, sink: str, on_new_checkpoint: str | None, function: str) -> NewCheckpoint:
    """Before a table is made. Raises OptionError or UnsafeSetting."""
    check_sink_name(sink)
    if not frame.isStreaming:
        raise OptionError(f"{function} takes a streaming DataFrame")
    refuse_unsafe(frame.sparkSession)
    options = SINK_TABLE.parse({"on_new_checkpoint": on_new_checkpoint})
    return NewCheckpoint(options.text("on_new_checkpoint"))


def lake_writer(frame: DataFrame, table: LakeTable, sink: str, on_new_checkpoint: NewCheckpoint) -> DataStreamWriter:
    from oncelog.spark.stream_writer import writer_for

    return writer_for(frame, LakeSink(frame.sparkSession, table, sink, on_new_checkpoint))


def check_sink_name(sink: str) -> None:
    if not sink or not sink.isascii() or not sink.replace(".", "").replace("_", "").replace("-", "").isalnum():
        raise OptionError(f"sink is {sink!r}: give it a name of {SINK_NAME}, and keep it for ever")


def written_files(frame: DataFrame, write: FileWriter) -> list[bytes]:
    """Let tasks write the rows of a batch. Returns the files of those runs of tasks that count."""
    attempt = uuid.uuid4().hex

    def write_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise RuntimeError("files are written by tasks of Spark")
        name = f"{context.partitionId():05d}-{attempt}-{context.taskAttemptId()}"
        for described in write(batches, name):
            yield pa.RecordBatch.from_pydict({"file": pa.array([described], pa.binary())})

    return [bytes(row.file) for row in frame.mapInArrow(write_files, "file binary").collect()]


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """What tasks make of the rows: times as moments in UTC, whatever the session shows them in."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema, timezone="UTC")
