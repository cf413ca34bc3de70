"""Changes of PostgreSQL by logical replication: the connections around `pgoutput`, `change_format` and `source_resume`.

Two connections: one for the replication stream, one for questions and for the rows of a snapshot. Slot and snapshot are
made together (`SNAPSHOT 'export'`), so that the rows are exactly what the stream does not send.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import pq

from oncelog.connect.change_format import Table, Transaction
from oncelog.connect.errors import Refused
from oncelog.connect.identifiers import quoted, quoted_table
from oncelog.connect.outbox import message_event, outbox_event
from oncelog.connect.pgoutput import (
    Begin,
    Commit,
    Data,
    Delete,
    Insert,
    Keepalive,
    Message,
    Relation,
    Truncate,
    Update,
    decode_stream,
    encode_status,
    lsn_text,
    parse_lsn,
)
from oncelog.connect.progress import SnapshotProgress
from oncelog.connect.published_tables import ENCODING, SESSION_OPTIONS, PublishedTables, Snapshot, change_format_of
from oncelog.connect.settings import SourceSettings
from oncelog.connect.source import Event, Idle, Resume, SourceCommit, SourceRecord, Stored
from oncelog.connect.source_resume import Server, Slot, check_slot, decide
from oncelog.core.failpoints import hit

STATUS_EVERY_S: Final = 10.0
CHECK_EVERY_S: Final = 60.0
RELEASE_TIMEOUT_S: Final = 20.0
EVENTS_MAX: Final = 2000
"""Of one read, so that memory stays bounded however large a transaction is."""
MESSAGES_SINCE: Final = 140000
"""The version of the server."""
_SLOT: Final = """
    select coalesce(confirmed_flush_lsn, '0/0')::text, coalesce(wal_status, 'lost'), active_pid, plugin, database
    from pg_replication_slots where slot_name = %s
"""


class PostgresSource:
    def __init__(self, settings: SourceSettings, partitions_of: Callable[[str], int]) -> None:
        self.settings = settings
        self._partitions_of = partitions_of
        self._application = f"oncelog-connect-{settings.name}"
        self._sql = psycopg.connect(
            settings.url,
            autocommit=True,
            options=SESSION_OPTIONS,
            client_encoding=ENCODING,
            application_name=f"{self._application}-sql",
        )
        self._replication = psycopg.connect(
            settings.url,
            autocommit=True,
            options=SESSION_OPTIONS,
            client_encoding=ENCODING,
            application_name=self._application,
            replication="database",
        )
        self._pg = self._replication.pgconn
        self._server_version = self._sql.info.server_version
        [(self._database,)] = self._sql.execute("select current_database()").fetchall()
        self._format = change_format_of(settings, self._database)
        self.tables = PublishedTables(self._sql, settings, self._database, self._format)
        self._tables: dict[int, Table] = {}
        self._generation = 1
        self._is_streaming = False
        self._is_skipping = False
        self._position = 0
        self._confirmed = 0
        self._reported_s = self._checked_s = time.monotonic()
        self.snapshot_position = 0
        self.snapshot_progress = SnapshotProgress()
        self.seen_position = 0

    def close(self) -> None:
        self._replication.close()
        self._sql.close()

    # Where to go on

    def resume(self, stored: Stored | None) -> Resume:
        self.require_publication()
        self.require_outbox()
        self.tables.require_topics()
        self._release_slot()
        resume = decide(self.settings.name, self.settings.slot, stored, self.server(), self.settings.accept_timeline)
        if resume.snapshot is not None:
            self._generation = resume.snapshot.generation
        return resume

    def require_publication(self) -> None:
        found = self._sql.execute("select from pg_publication where pubname = %s", (self.settings.publication,))
        if not found.fetchall():
            raise Refused(
                f"there is no publication {self.settings.publication} in the database {self._database}",
                f"create publication {quoted(self.settings.publication)} for table ...;",
            )

    def require_outbox(self) -> None:
        """A name that fits no table would have its events copied as rows; messages that do not come would be missed."""
        name, publication = self.settings.outbox_table, self.settings.publication
        if self.settings.outbox_prefix is not None and self._server_version < MESSAGES_SINCE:
            raise Refused(
                "outbox_prefix needs PostgreSQL 14: older servers do not send messages. Use outbox_table instead"
            )
        if name is not None and name not in {relation.full_name for relation, _ in self.tables.published()}:
            raise Refused(
                f"outbox_table is {name}, and the publication {publication} has no such table",
                f"alter publication {quoted(publication)} add table {quoted_table(name)};",
            )

    def server(self) -> Server:
        [(system, timeline, wal_lsn, _)] = self._replication.execute("IDENTIFY_SYSTEM").fetchall()
        return Server(str(system), int(timeline), parse_lsn(wal_lsn), self._slot())

    def _slot(self) -> Slot | None:
        found = self._sql.execute(_SLOT, (self.settings.slot,)).fetchone()
        if found is None:
            return None
        confirmed, wal_status, _, plugin, database = found
        if plugin != "pgoutput" or database != self._database:
            raise Refused(
                f"the replication slot {self.settings.slot} is of the plug-in {plugin} in the database {database}, not "
                f"of pgoutput in {self._database}: name another one with slot = ..."
            )
        return Slot(parse_lsn(confirmed), wal_status)

    def _release_slot(self) -> None:
        """End a predecessor's connection, which the server may take for alive. The log has fenced it already."""
        deadline_s = time.monotonic() + RELEASE_TIMEOUT_S
        while (user := self._slot_user()) is not None:
            pid, application = user
            if application == self._application:
                self._sql.execute("select pg_terminate_backend(%s)", (pid,))
            if time.monotonic() > deadline_s:
                raise ConnectionError(f"the replication slot {self.settings.slot} is used by {application}, pid {pid}")
            time.sleep(0.05)

    def _slot_user(self) -> tuple[int, str] | None:
        found = self._sql.execute(
            "select s.active_pid, coalesce(a.application_name, '?') from pg_replication_slots s "
            "left join pg_stat_activity a on a.pid = s.active_pid where s.slot_name = %s and s.active_pid is not null",
            (self.settings.slot,),
        ).fetchone()
        return None if found is None else (found[0], found[1])

    def current_position(self) -> int:
        [(lsn,)] = self._sql.execute("select pg_current_wal_flush_lsn()::text").fetchall()
        return parse_lsn(lsn)

    def position_text(self, position: int) -> str:
        return lsn_text(position)

    # The snapshot

    def snapshot(self) -> Iterator[SourceRecord]:
        with self.held_snapshot() as snapshot:
            snapshot.begin(self._format)
            for relation, condition in self.tables.published():
                progress = self.snapshot_progress
                progress.table, progress.rows = relation.full_name, 0
                progress.estimated = self.tables.estimated_rows(relation, condition)
                for record in self.tables.rows(relation, condition):
                    progress.rows += 1
                    yield record
                hit("source.snapshot.table")

    @contextmanager
    def held_snapshot(self) -> Iterator[Snapshot]:
        """A snapshot of the database for others to read, each by a connection of its own. See
        `PublishedTables.hold`."""
        snapshot = self.begin_snapshot()
        with self._sql.transaction():
            self.tables.hold(snapshot)
            yield snapshot

    def begin_snapshot(self) -> Snapshot:
        """Make the slot. Its snapshot can be read, also by others, as long as this connection does nothing else."""
        slot = self.settings.slot
        if self._slot() is not None:
            # Of a snapshot that was not completed: what is stored says so, and nothing was streamed from it.
            self._sql.execute("select pg_drop_replication_slot(%s)", (slot,))
        [(_, consistent_point, snapshot_name, _)] = self._replication.execute(
            f"CREATE_REPLICATION_SLOT {quoted(slot)} LOGICAL pgoutput EXPORT_SNAPSHOT".encode()
        ).fetchall()
        self.snapshot_position = parse_lsn(consistent_point)
        hit("source.snapshot.slot_made")
        return Snapshot(snapshot_name, self.snapshot_position, self._generation, int(time.time() * 1000))

    # The stream

    def stream(self, position: int) -> None:
        publication = self.settings.publication.replace('"', '""').replace("'", "''")
        command = (
            f"START_REPLICATION SLOT {quoted(self.settings.slot)} LOGICAL {lsn_text(position)} "
            f"(proto_version '1', publication_names '\"{publication}\"', messages 'true')"
        )
        if self._server_version < MESSAGES_SINCE:
            command = command.replace(", messages 'true'", "")
        result = self._pg.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise psycopg.OperationalError(f"replication does not start: {result.error_message.decode().strip()}")
        self._position = self._confirmed = position
        self._is_streaming = True

    def read(self, timeout_s: float) -> list[Event]:
        self._look_after()
        events: list[Event] = []
        while len(events) < EVENTS_MAX:
            size, data = self._pg.get_copy_data(1)
            if size > 0:
                events += self._events(bytes(data))
            elif size == 0:
                if events or not self._wait(timeout_s):
                    break
            else:
                self._fail()
        return events

    def _wait(self, timeout_s: float) -> bool:
        """Whether something has come."""
        has_come = self._await(select.POLLIN, timeout_s)
        if has_come:
            self._pg.consume_input()
        return has_come

    def _await(self, event: int, timeout_s: float) -> bool:
        server = select.poll()
        server.register(self._pg.socket, event)
        return bool(server.poll(timeout_s * 1000))

    def _fail(self) -> None:
        """The stream has ended: its result says why."""
        self._is_streaming = False
        result = self._pg.get_result()
        message = "" if result is None else result.error_message.decode(errors="replace").strip()
        message = message or self._pg.error_message.decode(errors="replace").strip()
        raise psycopg.OperationalError(f"the replication stream has ended: {message or 'the server closed it'}")

    def _events(self, data: bytes) -> Sequence[Event]:
        chunk = decode_stream(data)
        if chunk.end_lsn > self.seen_position:
            self.seen_position = chunk.end_lsn
        if isinstance(chunk, Keepalive):
            return [Idle(chunk.end_lsn, chunk.reply_wanted)]
        return self._changes(chunk)

    def _changes(self, chunk: Data) -> Sequence[Event]:
        message = chunk.message
        self._format.change_lsn = chunk.end_lsn
        if type(message) is Insert and not self._is_skipping:  # most of them
            table = self._tables[message.oid]
            return self._records(message) if self.tables.is_outbox(table) else self._format.insert(table, message.new)
        if isinstance(message, Begin):
            # The server leaves out what is before the position that was asked for; this is the second bolt.
            self._is_skipping = message.final_lsn < self._position
            self._format.begin(Transaction.of(message, self._position))
        elif isinstance(message, Relation):
            self._tables[message.oid] = self.tables.table(message)
        elif isinstance(message, Commit):
            if not self._is_skipping:
                self._position = message.end_lsn
                return [SourceCommit(message.end_lsn)]
        elif not self._is_skipping:
            return self._records(message)
        return []

    def _records(self, message: Any) -> Sequence[Event]:
        if isinstance(message, Message):
            return self._message(message)
        if isinstance(message, Insert | Update | Delete) and self.tables.is_outbox(table := self._tables[message.oid]):
            # Rows may be deleted at once: the insert stays in the log.
            if not isinstance(message, Insert):
                return []
            return [self.tables.event(outbox_event(table.fields(message.new), self.settings.outbox_topic, table.name))]
        if isinstance(message, Update):
            return self._format.update(self._tables[message.oid], message.old, message.new)
        if isinstance(message, Delete):
            return self._format.delete(self._tables[message.oid], message.old)
        if isinstance(message, Truncate):
            tables = [table for oid in message.oids if not self.tables.is_outbox(table := self._tables[oid])]
            return [r for table in tables for r in self._format.truncate(table, self._partitions_of(table.topic))]
        return []

    def _message(self, message: Message) -> list[Event]:
        """Others are somebody else's. One that is not transactional comes even if its transaction is rolled back."""
        if message.prefix != self.settings.outbox_prefix or not message.is_transactional:
            return []
        where = f"message with the prefix {message.prefix} at {lsn_text(message.lsn)}"
        return [self.tables.event(message_event(message.content, self.settings.outbox_topic, where))]

    def confirm(self, position: int) -> None:
        self._confirmed = max(self._confirmed, position)
        self._report()

    def _look_after(self) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s > STATUS_EVERY_S:
            # A server with wal_sender_timeout = 0 says by itself nothing while nothing happens.
            self._report(reply_wanted=True)
        if now_s - self._checked_s > CHECK_EVERY_S:
            self._checked_s = now_s
            slot = self._slot()
            if slot is not None:
                check_slot(self.settings.slot, slot)

    def _report(self, *, reply_wanted: bool = False) -> None:
        if not self._is_streaming:
            return
        self._pg.put_copy_data(encode_status(self._confirmed, int(time.time() * 1000), reply_wanted=reply_wanted))
        while self._pg.flush():
            self._await(select.POLLOUT, 1.0)
        self._reported_s = time.monotonic()
