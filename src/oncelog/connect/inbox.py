"""A table of the messages that a consumer has dealt with, so that each has its effect once, whatever delivers it.

    inbox = Inbox("billing", style="%s")            # "?" for SQLite
    with connection.transaction():
        if inbox.is_new(connection, record_id(record)):
            ...                                     # the effects, in the same transaction

A message that comes again finds its id in the table. Two consumers with the same message at the same time: the second
waits until the first has committed or rolled back. Offsets in the database (a sink) need one row per partition in place
of one per message; an inbox is for readers that are not connectors, and for events that come by several ways.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, Protocol

from oncelog.client import ConsumerRecord

TABLE: Final = "oncelog_inbox"


class Connection(Protocol):
    """What is needed of a connection of psycopg or sqlite3."""

    def execute(self, query: Any, values: Any = ..., /) -> Any: ...


class Inbox:
    def __init__(self, consumer: str, *, style: str = "%s") -> None:
        """`consumer` names whose effects are meant; `style` is how the driver marks values: %s or ?."""
        if style not in ("%s", "?"):
            raise ValueError(f"style is {style!r}: give %s for psycopg, ? for sqlite3")
        self._consumer = consumer
        self._style = style

    def create(self, connection: Connection) -> None:
        """Make the table if it is not there."""
        self._execute(
            connection,
            f"create table if not exists {TABLE} (consumer text not null, message_id text not null, "
            "seen_at bigint not null, primary key (consumer, message_id))",
        )

    def is_new(self, connection: Connection, message_id: str) -> bool:
        """Remember a message. False if it is known already: then do nothing with it."""
        found = self._execute(
            connection,
            f"insert into {TABLE} (consumer, message_id, seen_at) values (?, ?, {self._now()}) on conflict do nothing",
            (self._consumer, message_id),
        )
        return bool(found.rowcount == 1)

    def forget(self, connection: Connection, older_than: timedelta) -> int:
        """Delete ids that are older than any message can come again. Returns how many."""
        seconds = int(older_than.total_seconds())
        found = self._execute(
            connection,
            f"delete from {TABLE} where consumer = ? and seen_at < {self._now()} - ?",
            (self._consumer, seconds),
        )
        return int(found.rowcount)

    def _now(self) -> str:
        """Seconds of the database's clock: all consumers have the same."""
        return "cast(strftime('%s', 'now') as integer)" if self._style == "?" else "extract(epoch from now())::bigint"

    def _execute(self, connection: Connection, sql: str, values: tuple[Any, ...] = ()) -> Any:
        return connection.execute(sql.replace("?", self._style), values)


def record_id(record: ConsumerRecord) -> str:
    """Its header `id` if it has one, as events of an outbox have, else its place in the log."""
    given = next((value for name, value in record.headers if name == "id"), None)
    return given.decode() if given is not None else f"{record.topic}-{record.partition}-{record.offset}"
