"""The kinds of connectors, by the name that a file gives them."""

from __future__ import annotations

import importlib.util
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from oncelog.client import Admin, KafkaError
from oncelog.connect.database_sink import DatabaseSink
from oncelog.connect.errors import ConnectorStopped, Refused, in_one_line
from oncelog.connect.finding import Finding
from oncelog.connect.progress import Progress
from oncelog.connect.settings import ConnectorConfigError, SinkSettings, SourceSettings, sink_settings, source_settings
from oncelog.connect.sink import Instance
from oncelog.connect.sink_task import SinkTask
from oncelog.connect.source_task import SourceTask

if TYPE_CHECKING:
    from oncelog.connect.source_log import SourceLog

SOURCE_BATCH_BYTES: Final = 256 * 1024


class Task(Protocol):
    def run(self, stopping: Callable[[], bool]) -> None:
        """Work until told to stop. Raises ConnectorStopped, or a temporary error."""


class Kind(ABC):
    """A configured connector. It outlives the tasks that are made of it, one after each temporary error."""

    name: str
    temporary: tuple[type[Exception], ...]
    """Errors of its database after which it starts again."""

    @abstractmethod
    def task(self, progress: Progress) -> Any:
        """A context manager that gives a Task."""

    def check(self) -> Iterator[Finding]:
        """What it needs of the cluster and of the database. What is in the way of looking is a finding too."""
        try:
            yield from self._check()
        except ConnectorStopped as error:
            yield Finding(False, error.problem, error.fix)
        except self.temporary as error:
            yield Finding(False, f"the database does not answer: {in_one_line(error)}")

    @abstractmethod
    def _check(self) -> Iterator[Finding]:
        """May raise ConnectorStopped and temporary errors of the database."""

    def close(self) -> None:  # noqa: B027  # most have nothing that outlives a task
        """When no more tasks are made."""


class SinkKind(Kind):
    def __init__(self, settings: SinkSettings) -> None:
        self.name = settings.name
        self._settings = settings
        self._instance = Instance()

    @abstractmethod
    def _open(self) -> DatabaseSink: ...

    @contextmanager
    def task(self, progress: Progress) -> Iterator[SinkTask]:
        with closing(self._open()) as sink, SinkTask(self._settings, sink, progress) as task:
            yield task

    def _check(self) -> Iterator[Finding]:
        yield from check_topics(self._settings.client, self._settings.topics)
        try:
            sink = self._open()
        except self.temporary as error:
            yield Finding(False, f"the database does not let us in: {in_one_line(error)}")
            return
        yield Finding(True, "the database lets us in")
        with closing(sink):
            for table in sorted({self._settings.table.replace("{topic}", topic) for topic in self._settings.topics}):
                yield from _check_table(sink, table)
            yield from sink.check_rights()


def _check_table(sink: DatabaseSink, table: str) -> Iterator[Finding]:
    missing = [*sink.check_rights_on(table)]
    yield from missing
    if missing:
        return
    try:
        facts = sink.facts(table)
    except ConnectorStopped as error:
        yield Finding(False, error.problem, error.fix)
        return
    by_key = f", by {', '.join(facts.key)}" if facts.key and sink.settings.mode == "upsert" else ""
    yield Finding(True, f"table {table} can be written{by_key}")


def check_topics(client: Mapping[str, Any], topics: tuple[str, ...]) -> Iterator[Finding]:
    try:
        with Admin(client) as admin:
            known = admin.list_topics()
    except KafkaError as error:
        yield Finding(False, f"the cluster does not answer: {error}")
        return
    for topic in topics:
        if topic in known:
            yield Finding(True, f"topic {topic} is there")
        else:
            yield Finding(False, f"topic {topic} does not exist", command=("topic", "create", topic))


class SqliteSinkKind(SinkKind):
    temporary = (sqlite3.OperationalError,)

    def _check(self) -> Iterator[Finding]:
        """Looks for the file first, because SQLite creates a file that it opens."""
        if not Path(self._settings.url).exists():
            yield from check_topics(self._settings.client, self._settings.topics)
            yield Finding(
                False, f"there is no file {self._settings.url}", f'sqlite3 {self._settings.url} "create table ..."'
            )
            return
        yield from super()._check()

    def _open(self) -> DatabaseSink:
        from oncelog.connect.sqlite_sink import SqliteSink

        return SqliteSink(self._settings, self._instance)


class PostgresSinkKind(SinkKind):
    def __init__(self, settings: SinkSettings) -> None:
        super().__init__(settings)
        self.temporary = _postgres_errors()
        _check_url(settings.url)

    def _open(self) -> DatabaseSink:
        from oncelog.connect.postgres_sink import PostgresSink

        return PostgresSink(self._settings, self._instance)


class PostgresSourceKind(Kind):
    """Its log outlives reconnections to the database: so it notices when a newer instance has taken over."""

    def __init__(self, settings: SourceSettings) -> None:
        self.name = settings.name
        self.temporary = _postgres_errors()
        _check_url(settings.url)
        self._settings = settings
        self._log: SourceLog | None = None

    @contextmanager
    def task(self, progress: Progress) -> Iterator[SourceTask]:
        import psycopg

        from oncelog.connect.postgres_source import PostgresSource

        settings = self._settings
        if self._log is None:
            self._log = open_source_log(settings)
        try:
            with closing(PostgresSource(settings, self._log.partitions_of)) as source:
                yield SourceTask(settings, source, self._log, progress)
        except psycopg.ProgrammingError as error:
            raise Refused(
                f"the database refuses a statement of {self.name}: {in_one_line(error)}. `oncelog connect check` says "
                "what it needs"
            ) from error

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _check(self) -> Iterator[Finding]:
        from oncelog.connect.postgres_check import check_source

        problems = [*check_topics(self._settings.client, ())]
        yield from problems
        if problems:
            yield from check_source(self._settings)
            return
        with closing(open_source_log(self._settings)) as log:
            yield from check_source(self._settings, log.read)


def open_source_log(settings: SourceSettings) -> SourceLog:
    from oncelog.connect.source_log import SourceLog

    producer = {
        "transaction.timeout.ms": settings.transaction_timeout_ms,
        "compression.type": settings.compression_type,
        "max.request.size": settings.max_request_size,
        "batch.size": SOURCE_BATCH_BYTES,
    }
    return SourceLog(settings.name, settings.client, producer)


def _postgres_errors() -> tuple[type[Exception], ...]:
    if importlib.util.find_spec("psycopg") is None:
        raise ConnectorConfigError("the driver of PostgreSQL is missing: pip install 'oncelog[connect]'")
    import psycopg

    return (psycopg.OperationalError, psycopg.InterfaceError)


def _check_url(url: str) -> None:
    """The driver's own messages about an URL that it cannot read have the URL in them, with its password."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        facts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        facts = {"host": "@"}
    ports = str(facts.get("port") or "").split(",")
    if "@" in str(facts.get("host") or "") or not all(port.isdecimal() for port in ports if port):
        raise ConnectorConfigError(
            "url is not postgresql://USER:PASSWORD@HOST:PORT/DATABASE. What is no letter or digit in a password is "
            "written as % and two hex digits: %40 for @, %2F for /, %25 for %"
        )


KINDS: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Kind]]] = {
    "sqlite-sink": lambda given, client: SqliteSinkKind(sink_settings(given, client)),
    "postgres-source": lambda given, client: PostgresSourceKind(source_settings(given, client)),
    "postgres-sink": lambda given, client: PostgresSinkKind(sink_settings(given, client)),
}
