"""Two-phase commit with SQLite as the other side: a database and a topic that never disagree.

    python -m examples.client.two_phase_commit 127.0.0.1:9092 bank.db

SQLite decides. Each transfer is written to the topic and prepared; then one SQLite transaction stores the new balances
and the name of the prepared Kafka transaction; only then is the Kafka transaction committed. A crash before SQLite's
commit leaves nothing: the next start aborts what Kafka has. A crash after it leaves the name in SQLite: the next start
completes the transaction by it, and doing that twice does no harm.

A prepared transaction waits no longer than `transaction.timeout.ms`. Brokers with KIP-939 hold it for ever:
`transaction.two.phase.commit.enable` asks for that.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing

from oncelog.client import PreparedTransaction, Producer

TABLES = """
create table if not exists balance (account text primary key, amount integer not null);
create table if not exists prepared (name text primary key, transaction_id text not null);
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
    at: Crash = lambda step: None,
) -> None:
    """Carry out transfers, each in both systems or in neither."""
    config = {"bootstrap.servers": servers, "transactional.id": transactional_id, "transaction.timeout.ms": 600_000}
    with closing(sqlite3.connect(database)) as bank, Producer(config) as producer:
        bank.executescript(TABLES)
        recover(bank, producer, transactional_id)
        producer.init_transactions()
        for account, amount in transfers:
            transfer(bank, producer, transactional_id, topic, account, amount, at)


def recover(bank: sqlite3.Connection, producer: Producer, name: str) -> None:
    """Finish what the last run had decided."""
    row = bank.execute("select transaction_id from prepared where name = ?", (name,)).fetchone()
    if row is not None:
        producer.complete(PreparedTransaction.parse(row[0]))


def transfer(
    bank: sqlite3.Connection, producer: Producer, name: str, topic: str, account: str, amount: int, at: Crash
) -> None:
    producer.begin_transaction()
    producer.send(topic, str(amount), key=account)
    prepared = producer.prepare()
    at("prepared")
    with bank:
        bank.execute(
            "insert into balance values (?, ?) on conflict (account) do update set amount = amount + excluded.amount",
            (account, amount),
        )
        bank.execute("insert or replace into prepared values (?, ?)", (name, str(prepared)))
    at("decided")
    producer.complete(prepared)
    at("completed")


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], [("alice", 10), ("bob", -4), ("alice", 7)])
