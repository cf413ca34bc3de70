"""A dual write: an order in PostgreSQL and its event in a topic, both or none, without a connector in between.

    python -m examples.connect.dual_write 127.0.0.1:9092 postgresql://user@host/database

PostgreSQL decides. The event is written to the topic and prepared; one transaction of PostgreSQL stores the order and
the name of the prepared transaction; then the event is committed by that name. After a crash the next start finds the
name: it completes that transaction, which does no harm if it was completed before. If the connection is lost during
PostgreSQL's commit, the stored name tells whether it happened.

A prepared transaction waits no longer than `transaction.timeout.ms`, unless the broker has KIP-939. If the next start
comes too late, it writes the event again that PostgreSQL has decided for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import psycopg

from oncelog.client import AbortableError, PreparedTransaction, Producer

TABLES = """
create table if not exists orders (id bigint primary key, item text not null);
create table if not exists dual_writes (writer text primary key, prepared text not null, event_key text not null,
    event text not null);
"""
Crash = Callable[[str], None]
"""Called between the steps, so that a test can die there."""


class OrderService:
    """One instance per `writer`, which names its transactions for ever."""

    def __init__(self, servers: str, url: str, topic: str, writer: str, at: Crash = lambda step: None) -> None:
        self._url, self._topic, self._writer, self._at = url, topic, writer, at
        self._database = psycopg.connect(url)
        with self._database.transaction():
            self._database.execute(TABLES)
        self._producer = Producer({"bootstrap.servers": servers, "transactional.id": writer})
        self._recover()

    def close(self) -> None:
        self._producer.close()
        self._database.close()

    def order(self, number: int, item: str) -> None:
        key, event = str(number), json.dumps({"id": number, "item": item})
        prepared = self._write(key, event)
        self._at("prepared")
        try:
            with self._database.transaction():
                self._database.execute("insert into orders values (%s, %s)", (number, item))
                self._remember(prepared, key, event)
        except psycopg.OperationalError:
            # The outcome of the commit is not known: what is stored tells.
            self._database = psycopg.connect(self._url)
            if not self._is_remembered(prepared):
                self._producer.abort_transaction()
                raise
        except psycopg.Error:
            self._producer.abort_transaction()
            raise
        self._at("decided")
        self._producer.complete(prepared)
        self._at("completed")

    def _write(self, key: str, event: str) -> PreparedTransaction:
        self._producer.begin_transaction()
        self._producer.send(self._topic, event, key=key)
        return self._producer.prepare()

    def _remember(self, prepared: PreparedTransaction, key: str, event: str) -> None:
        self._database.execute(
            "insert into dual_writes values (%s, %s, %s, %s) on conflict (writer) do update set "
            "prepared = excluded.prepared, event_key = excluded.event_key, event = excluded.event",
            (self._writer, str(prepared), key, event),
        )

    def _stored(self) -> tuple[str, str, str] | None:
        query = "select prepared, event_key, event from dual_writes where writer = %s"
        with self._database.transaction():
            found: tuple[str, str, str] | None = self._database.execute(query, (self._writer,)).fetchone()
        return found

    def _is_remembered(self, prepared: PreparedTransaction) -> bool:
        stored = self._stored()
        return stored is not None and stored[0] == str(prepared)

    def _recover(self) -> None:
        """Finish what the last run had decided; what it had only prepared is aborted by `init_transactions`."""
        stored = self._stored()
        is_lost = False
        if stored is not None:
            try:
                self._producer.complete(PreparedTransaction.parse(stored[0]))
            except AbortableError:
                is_lost = True
        self._producer.init_transactions()
        if stored is not None and is_lost:
            _, key, event = stored
            prepared = self._write(key, event)
            with self._database.transaction():
                self._remember(prepared, key, event)
            self._producer.complete(prepared)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("servers", metavar="HOST:PORT")
    parser.add_argument("url", metavar="URL")
    options = parser.parse_args()
    service = OrderService(options.servers, options.url, "example-orders", "example-order-service")
    for number, item in enumerate(["tea", "cake", "soup"]):
        service.order(number, item)
    service.close()
