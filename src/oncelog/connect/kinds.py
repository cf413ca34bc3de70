"""The kinds of connectors, by the name that a file gives them."""

from __future__ import annotations

import importlib.util
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from oncelog.client import Admin, KafkaError
from oncelog.connect.database_sink import DatabaseSink
from oncelog.connect.errors import ConnectorStopped
from oncelog.connect.progress import Progress
from oncelog.connect.settings import ConnectorConfigError, SinkSettings, SourceSettings, sink_settings, source_settings
from oncelog.connect.sink import Instance
from oncelog.connect.sink_task import SinkTask
from oncelog.connect.source_task import SourceTask

if TYPE_CHECKING:
    from oncelog.connect.source_log import SourceLog

SOURCE_BATCH_BYTES: Final = 256 * 1024


class Finding(NamedTuple):
    """What `oncelog connect check` says about one thing that a connector needs."""

    is_met: bool
    text: str
    fix: str = ""
    """SQL or a command."""


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

    @abstractmethod
    def check(self) -> Iterator[Finding]:
        """What it needs of the cluster and of the database."""

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

    def check(self) -> Iterator[Finding]:
        yield from check_topics(self._settings.client, self._settings.topics)
        try:
            sink = self._open()
        except self.temporary as error:
            yield Finding(False, f"the database does not let us in: {error}")
            return
        yield Finding(True, "the database lets us in")
        with closing(sink):
            for topic in self._settings.topics:
                yield _check_table(sink, self._settings.table.replace("{topic}", topic))


def _check_table(sink: DatabaseSink, table: str) -> Finding:
    try:
        facts = sink.facts(table)
    except ConnectorStopped as error:
        return Finding(False, str(error))
    by_key = f", by {', '.join(facts.key)}" if facts.key and sink.settings.mode == "upsert" else ""
    return Finding(True, f"table {table} can be written{by_key}")


def check_topics(client: Mapping[str, Any], topics: tuple[str, ...]) -> Iterator[Finding]:
    try:
        with Admin(client) as admin:
            known = admin.list_topics()
    except KafkaError as error:
        yield Finding(False, f"the cluster does not answer: {error}")
        return
    for topic in topics:
        fix = "" if topic in known else f"oncelog topic create {topic}"
        yield Finding(topic in known, f"topic {topic} {'is there' if topic in known else 'does not exist'}", fix)


class SqliteSinkKind(SinkKind):
    temporary = (sqlite3.OperationalError,)

    def _open(self) -> DatabaseSink:
        from oncelog.connect.sqlite_sink import SqliteSink

        return SqliteSink(self._settings, self._instance)


class PostgresSinkKind(SinkKind):
    def __init__(self, settings: SinkSettings) -> None:
        super().__init__(settings)
        self.temporary = _postgres_errors()

    def _open(self) -> DatabaseSink:
        from oncelog.connect.postgres_sink import PostgresSink

        return PostgresSink(self._settings, self._instance)


class PostgresSourceKind(Kind):
    """Its log outlives reconnections to the database: so it notices when a newer instance has taken over."""

    def __init__(self, settings: SourceSettings) -> None:
        self.name = settings.name
        self.temporary = _postgres_errors()
        self._settings = settings
        self._log: SourceLog | None = None

    @contextmanager
    def task(self, progress: Progress) -> Iterator[SourceTask]:
        from oncelog.connect.postgres_source import PostgresSource
        from oncelog.connect.source_log import SourceLog

        settings = self._settings
        if self._log is None:
            producer = {
                "transaction.timeout.ms": settings.transaction_timeout_ms,
                "compression.type": settings.compression_type,
                "max.request.size": settings.max_request_size,
                "batch.size": SOURCE_BATCH_BYTES,
            }
            self._log = SourceLog(settings.name, settings.client, producer)
        with closing(PostgresSource(settings, self._log.partitions_of)) as source:
            yield SourceTask(settings, source, self._log, progress)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def check(self) -> Iterator[Finding]:
        from oncelog.connect.postgres_check import check_source

        yield from check_topics(self._settings.client, ())
        yield from check_source(self._settings)


def _postgres_errors() -> tuple[type[Exception], ...]:
    if importlib.util.find_spec("psycopg") is None:
        raise ConnectorConfigError("the driver of PostgreSQL is missing: pip install 'oncelog[connect]'")
    import psycopg

    return (psycopg.OperationalError, psycopg.InterfaceError)


KINDS: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Kind]]] = {
    "sqlite-sink": lambda given, client: SqliteSinkKind(sink_settings(given, client)),
    "postgres-source": lambda given, client: PostgresSourceKind(source_settings(given, client)),
    "postgres-sink": lambda given, client: PostgresSinkKind(sink_settings(given, client)),
}
