"""Two-phase commit with SQLite as the other side: a database and a topic that never disagree.

    python -m examples.client.two_phase_commit 127.0.0.1:9092 bank.db

SQLite decides. Each transfer is written to the topic and prepared; then one SQLite transaction stores the new balances
and the name of the prepared Kafka transaction; only then is the Kafka transaction committed. A crash before SQLite's
commit leaves nothing: the next start aborts what Kafka has. A crash after it leaves the name in SQLite: the next start
completes the transaction by it, and doing that twice does no harm.

A prepared transaction waits no longer than `transaction.timeout.ms`. If the next start comes too late, it writes to the
topic again what SQLite has decided. Brokers with KIP-939 hold a prepared transaction for ever:
`transaction.two.phase.commit.enable` asks for that.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Callable
from contextlib import closing

from oncelog.client import AbortableError, PreparedTransaction, Producer

TABLES = """
create table if not exists balance (account text primary key, amount integer not null);
create table if not exists prepared (name text primary key, transaction_id text not null,
    account text not null, amount integer not null);
"""
Crash = Callable[[str], None]
"""Called between the steps, so that a test can die there."""


def run(
    servers: str,
    database: str,
    transfers: list[tuple[str, int]],
    *,
    topic: str = "example-transfers",
    transactional_id: str = "example-bank",
    transaction_timeout_ms: int = 600_000,
    at: Crash = lambda step: None,
) -> None:
    """Carry out transfers, each in both systems or in neither."""
    config = {
        "bootstrap.servers": servers,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": transaction_timeout_ms,
    }
    with closing(sqlite3.connect(database)) as bank, Producer(config) as producer:
        bank.executescript(TABLES)
        recover(bank, producer, transactional_id, topic)
        for account, amount in transfers:
            transfer(bank, producer, transactional_id, topic, account, amount, at)


def recover(bank: sqlite3.Connection, producer: Producer, name: str, topic: str) -> None:
    """Finish what the last run had decided."""
    query = "select transaction_id, account, amount from prepared where name = ?"
    decided, account, amount = bank.execute(query, (name,)).fetchone() or (None, "", 0)
    lost = False
    if decided is not None:
        try:
            producer.complete(PreparedTransaction.parse(decided))
        except AbortableError:
            lost = True
    producer.init_transactions()
    if lost:
        prepared = write(producer, topic, account, amount)
        with bank:
            remember(bank, name, prepared, account, amount)
        producer.complete(prepared)


def transfer(
    bank: sqlite3.Connection, producer: Producer, name: str, topic: str, account: str, amount: int, at: Crash
) -> None:
    prepared = write(producer, topic, account, amount)
    at("prepared")
    with bank:
        bank.execute(
            "insert into balance values (?, ?) on conflict (account) do update set amount = amount + excluded.amount",
            (account, amount),
        )
        remember(bank, name, prepared, account, amount)
    at("decided")
    producer.complete(prepared)
    at("completed")


def write(producer: Producer, topic: str, account: str, amount: int) -> PreparedTransaction:
    producer.begin_transaction()
    producer.send(topic, str(amount), key=account)
    return producer.prepare()


def remember(bank: sqlite3.Connection, name: str, prepared: PreparedTransaction, account: str, amount: int) -> None:
    bank.execute("insert or replace into prepared values (?, ?, ?, ?)", (name, str(prepared), account, amount))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("servers", metavar="HOST:PORT")
    parser.add_argument("database", metavar="FILE")
    options = parser.parse_args()
    run(options.servers, options.database, [("alice", 10), ("bob", -4), ("alice", 7)])
