"""A sink into a table of PostgreSQL: the rows of a micro-batch and its number are one transaction of the database.

Theory of operation. Spark calls the sink in the driver for each micro-batch (`foreachBatch`), and may call it again for
one that is written: the target decides, by a row of `oncelog_spark_sinks`: query, batch, its plan and the tables that
it read, owner and so on.

1. The first batch of a driver claims the row: owner number + 1. An older driver finds that at its next commit.
2. A batch that is there already is computed (sources and state depend on it) and thrown away (`written_batches`).
3. Tasks copy their rows into an unlogged staging table, marked with attempt, partition and task. Spark may run a task
   twice; it returns the marks of those runs that count.
4. One transaction of the driver moves the rows with these marks into the table and sets the batch number, if the row is
   still this driver's. If its outcome is not known, Spark runs the batch again, and step 2 finds it.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oncelog.connect.identifiers import quoted, quoted_table
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
SINKS_TABLE: Final = "oncelog_spark_sinks"
SINK_NAME_MAX: Final = 40
"""PostgreSQL cuts the names of applications at 63 bytes, and replaces what is not ASCII."""
LATER_COLUMNS: Final = {"plan": "bigint", "tables": "text"}
"""That the first versions did not have."""
MARKS: Final = ("oncelog_attempt", "oncelog_part", "oncelog_task")
MARK_SCHEMA: Final = "part int, task bigint, written bigint"


class Staged(NamedTuple):
    """A run of a task that counts."""

    part: int
    task: int
    written: int


def write_stream_to_postgres(
    frame: DataFrame,
    *,
    url: str,
    table: str,
    sink: str,
    mode: str = "append",
    key: Sequence[str] = (),
    order_by: str | None = None,
    on_new_checkpoint: str | None = None,
) -> DataStreamWriter:
    """A `DataStreamWriter` that writes each micro-batch and its number in one transaction of PostgreSQL.

    `sink` names this pipeline in the database for ever. Columns go to those of the same name. With `mode="upsert"` rows
    are found by the columns `key`, which need a unique index; if a batch can have several rows of a key, `order_by`
    names the column whose largest value wins. A new checkpoint is refused over rows of another one, unless
    `on_new_checkpoint` is "reprocess"; see `write_stream`. Needs `pip install 'oncelog[connect]'`, also on executors.
    """
    _driver_of_postgres()
    if not 1 <= len(sink) <= SINK_NAME_MAX or not (sink.isascii() and sink.isprintable()):
        raise OptionError(
            f"sink is {sink!r}: give it a name of up to {SINK_NAME_MAX} ASCII characters, and keep it for ever"
        )
    if mode not in ("append", "upsert"):
        raise OptionError(f"mode is {mode!r}: append or upsert")
    if (mode == "upsert") != bool(key):
        raise OptionError("mode='upsert' needs key=[...], the columns that rows are found by; mode='append' has none")
    missing = [name for name in (*key, *([order_by] if order_by else [])) if name not in frame.columns]
    if missing:
        raise OptionError(f"the rows have no column {missing[0]}, which key or order_by names")
    if not frame.isStreaming:
        raise OptionError("write_stream_to_postgres takes a streaming DataFrame")
    refuse_unsafe(frame.sparkSession)
    from oncelog.spark.stream_writer import writer_for

    target = Target(url, table, sink, uuid.uuid4().hex, tuple(frame.columns), tuple(key), order_by)
    options = SINK_TABLE.parse({"on_new_checkpoint": on_new_checkpoint})
    new_checkpoint = NewCheckpoint(options.text("on_new_checkpoint"))
    return writer_for(frame, PostgresTableSink(frame.sparkSession, target, new_checkpoint))


def _driver_of_postgres() -> Any:
    try:
        import psycopg
    except ImportError:
        raise OptionError("the driver of PostgreSQL is missing: pip install 'oncelog[connect]'") from None
    return psycopg


def stage_name(instance: str) -> str:
    return quoted(f"oncelog_stage_{instance}")


@dataclass(frozen=True)
class Target:
    """Where rows go; small and picklable, for tasks."""

    url: str = field(repr=False)
    """It may have a password in it."""
    table: str
    sink: str
    instance: str
    """Of this driver: each has a stage of its own, and waits for no task of another."""
    columns: tuple[str, ...]
    key: tuple[str, ...]
    order_by: str | None

    @property
    def stage(self) -> str:
        return stage_name(self.instance)

    @property
    def application(self) -> str:
        """How PostgreSQL names the connections of this sink."""
        return f"oncelog-spark-{self.sink}"

    @property
    def names(self) -> str:
        return ", ".join(map(quoted, self.columns))

    def connect(self, **options: Any) -> Any:
        return _driver_of_postgres().connect(self.url, application_name=self.application, **options)

    @property
    def _chosen(self) -> str:
        """The rows of the runs that count; their marks are its values $1 to $3."""
        marked = (
            f"s.{MARKS[0]} = $1 and (s.{MARKS[1]}, s.{MARKS[2]}) in (select * from unnest($2::int[], $3::bigint[]))"
        )
        return f"from {self.stage} s where {marked}"

    def count_statement(self) -> str:
        return f"select count(*) {self._chosen}"

    def move_statement(self) -> str:
        """From the stage into the table."""
        chosen = self._chosen
        into = f"insert into {quoted_table(self.table)} ({self.names})"
        if not self.key:
            return f"{into} select {self.names} {chosen}"
        keys = ", ".join(map(quoted, self.key))
        changed = ", ".join(f"{quoted(n)} = excluded.{quoted(n)}" for n in self.columns if n not in self.key)
        action = f"do update set {changed}" if changed else "do nothing"
        if self.order_by is None:
            return f"{into} select {self.names} {chosen} on conflict ({keys}) {action}"
        order = f"order by {keys}, {quoted(self.order_by)} desc nulls last"
        latest = f"select distinct on ({keys}) {self.names} {chosen} {order}"
        return f"{into} {latest} on conflict ({keys}) {action}"


@dataclass
class PostgresTableSink:
    """The function given to `foreachBatch`."""

    spark: SparkSession
    target: Target
    on_new_checkpoint: NewCheckpoint
    _is_claimed: bool = False
    _joined: TablesOfQuery = field(init=False)

    def __post_init__(self) -> None:
        self._joined = TablesOfQuery(self.spark)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        batch = running_batch(self.spark, frame, batch_id)
        refuse_unsafe_checkpoint(self.spark, batch)
        tables = self._joined.read_by(batch)
        with self.target.connect(autocommit=True) as connection:
            last = self._last_batch(connection, batch)
            if is_written(batch, last, f"the table {self.target.table}", self.on_new_checkpoint, tables):
                drain(frame)
            else:
                attempt = uuid.uuid4().hex
                staged = stage_rows(frame, self.target, attempt)
                failpoints.hit("spark.postgres.staged")
                done = LastBatch(batch.batch_id, batch.planned_ms, tables)
                self._commit(connection, batch, done, last.number, attempt, staged)
                failpoints.hit("spark.postgres.committed")
        self._joined.renew(batch)

    def _last_batch(self, connection: Any, batch: MicroBatch) -> LastBatch:
        """The last batch of this query that is in the table. The first call claims the sink."""
        mine = self.target.instance
        if not self._is_claimed:
            # A driver or a task that is paused in a transaction would hold its locks for ever.
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where application_name = %s and pid <> pg_backend_pid() and datname = current_database()",
                (self.target.application,),
            )
        with connection.transaction():
            if not self._is_claimed:
                self._make_tables(connection, batch)
            query, written, instance, plan, tables = connection.execute(
                f"select query, batch, instance, plan, tables from {SINKS_TABLE} where sink = %s for update",
                (self.target.sink,),
            ).fetchone()
            if self._is_claimed and instance != mine:
                raise self._fenced()
            if query != batch.query_id:
                written = self._new_checkpoint(query, written, batch)
            connection.execute(
                f"update {SINKS_TABLE} set query = %s, batch = %s, instance = %s, owner = owner + %s where sink = %s",
                (batch.query_id, written, mine, 0 if self._is_claimed else 1, self.target.sink),
            )
        self._is_claimed = True
        if instance != mine:
            _drop_stage(connection, instance)
        return LastBatch(int(written), plan, tables)

    def _make_tables(self, connection: Any, batch: MicroBatch) -> None:
        connection.execute("select pg_advisory_xact_lock(hashtext(%s))", (SINKS_TABLE,))
        connection.execute(
            f"create table if not exists {SINKS_TABLE} (sink text primary key, query text not null, batch bigint not "
            "null, owner bigint not null, instance text not null, input text not null)"
        )
        found = connection.execute(f"select attname from pg_attribute where attrelid = '{SINKS_TABLE}'::regclass")
        there = {name for (name,) in found.fetchall()}
        for name, of in LATER_COLUMNS.items():
            if name not in there:
                connection.execute(f"alter table {SINKS_TABLE} add column {name} {of}")
        connection.execute(
            f"insert into {SINKS_TABLE} values (%s, %s, -1, 0, '', '') on conflict do nothing",
            (self.target.sink, batch.query_id),
        )
        connection.execute(
            f"create unlogged table if not exists {self.target.stage} as select {self.target.names}, "
            f"''::text as {MARKS[0]}, 0 as {MARKS[1]}, 0::bigint as {MARKS[2]} "
            f"from {quoted_table(self.target.table)} with no data"
        )

    def _new_checkpoint(self, query: str, written: int, batch: MicroBatch) -> int:
        if written >= 0 and self.on_new_checkpoint is NewCheckpoint.REFUSE:
            raise CannotResume(
                f"the table {self.target.table} has batches up to {written} of the query {query}, written by the sink "
                f"{self.target.sink}, and this is the query {batch.query_id}: its checkpoint is a new one, and would "
                "write the same input again. Use the old checkpoint, another sink and table, or "
                "on_new_checkpoint='reprocess'"
            )
        return -1

    def _fenced(self) -> DriverFenced:
        return DriverFenced(
            f"another driver has taken over the sink {self.target.sink}: this one stops, and what it had not committed "
            "was rolled back"
        )

    def _commit(
        self, connection: Any, batch: MicroBatch, done: LastBatch, before: int, attempt: str, staged: list[Staged]
    ) -> None:
        parts, tasks = [run.part for run in staged], [run.task for run in staged]
        read_to = json.dumps({str(partition): offset for partition, offset in sorted(batch.end.items())})
        cursor = _driver_of_postgres().RawCursor(connection)  # a column may have any name, also one with a %
        with connection.transaction():
            [(found,)] = cursor.execute(self.target.count_statement().encode(), (attempt, parts, tasks)).fetchall()
            if found != sum(run.written for run in staged):
                raise RuntimeError(
                    f"the stage {self.target.stage} has not all the rows of batch {batch.batch_id}: the database was "
                    "restarted, or somebody else has changed it. Nothing was written; the next start runs it again"
                )
            cursor.execute(self.target.move_statement().encode(), (attempt, parts, tasks))
            failpoints.hit("spark.postgres.moved")
            moved = connection.execute(
                f"update {SINKS_TABLE} set batch = %s, plan = %s, tables = %s, input = %s where sink = %s and "
                "query = %s and batch = %s and instance = %s",
                (
                    *done,
                    read_to,
                    self.target.sink,
                    batch.query_id,
                    before,
                    self.target.instance,
                ),
            )
            if moved.rowcount != 1:
                raise self._fenced()
            connection.execute(f"delete from {self.target.stage}")


def _drop_stage(connection: Any, instance: str) -> None:
    """Of a driver that is gone. If a task of it still writes there, it stays for now."""
    try:
        with connection.transaction():
            connection.execute("set local lock_timeout = '1s'")
            connection.execute(f"drop table if exists {stage_name(instance)}")
    except _driver_of_postgres().errors.LockNotAvailable:
        logger.warning("the stage %s of an older driver is in use, and stays", stage_name(instance))


def stage_rows(frame: DataFrame, target: Target, attempt: str) -> list[Staged]:
    """Copy the rows of a batch into the stage. Returns the runs of tasks that count."""

    def copy_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise RuntimeError("rows are copied by tasks of Spark")
        part, task = context.partitionId(), context.taskAttemptId()
        written = copy_to_stage(target, batches, (attempt, part, task))
        yield pa.RecordBatch.from_pydict(
            {"part": pa.array([part], pa.int32()), "task": pa.array([task]), "written": pa.array([written])}
        )

    return [Staged(*row) for row in frame.mapInArrow(copy_rows, MARK_SCHEMA).collect()]


def copy_to_stage(target: Target, batches: Iterable[pa.RecordBatch], marks: tuple[str, int, int]) -> int:
    from psycopg.types.json import JsonDumper

    written = 0
    columns = f"{target.names}, {', '.join(MARKS)}"
    with target.connect() as connection, connection.cursor() as cursor:
        cursor.adapters.register_dumper(dict, JsonDumper)
        with cursor.copy(f"copy {target.stage} ({columns}) from stdin".encode()) as copy:
            for batch in batches:
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    copy.write_row((*row, *marks))
                written += batch.num_rows
    return written
