"""Readers that look all the time while a soak runs: whatever they see is whole, in the log and in the copy."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg

from oncelog.client import Consumer, KafkaError, TopicPartition
from tests.connect.children import Child
from tests.connect.topic_reader import Read, decoded

FETCH_BYTES = 64 * 1024 * 1024
PAUSE_S = 0.02


class Balances:
    """What a reader of the accounts knows. Behind each transaction, and behind all that is visible, the sum is right.

    It is read from one partition, in the order of commits.
    """

    def __init__(self, accounts: int, total: int) -> None:
        self._accounts, self._total = accounts, total
        self._rows: dict[int, int] = {}
        self._last: Read | None = None
        self.seen = 0

    def take(self, record: Read) -> None:
        if self._last is not None and not record.snapshot:
            assert (record.lsn, record.index) > (self._last.lsn, self._last.index), f"{record} comes after {self._last}"
            if record.lsn != self._last.lsn:
                self.check()
        self._rows[record.key["id"]] = record.value["balance"]
        self._last = record
        self.seen += 1

    def check(self) -> None:
        if self._rows:
            assert len(self._rows) == self._accounts, "half of the snapshot is visible"
            assert sum(self._rows.values()) == self._total, f"half of {self._last} is visible"


class Watcher:
    """A process that looks again and again until it is told to end. It ends with 1 if what it sees is not whole."""

    def __init__(self, look: Callable[[], Iterator[int]], report: Path) -> None:
        """`look` yields, after each look, what it has seen so far."""
        self._report = report

        def run() -> None:
            stop = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
            for seen in look():
                report.write_text(str(seen))
                if stop.is_set():
                    return
                time.sleep(PAUSE_S)

        self._child = Child(run)

    def check(self) -> None:
        assert not self._child.has_ended(), "what a reader has seen was not whole, see above"

    def close(self) -> None:
        self._child.kill()

    def finish(self) -> int:
        self.check()
        self._child.signal(signal.SIGTERM)
        assert self._child.wait() == 0, "what a reader has seen was not whole, see above"
        return int(self._report.read_text())


def watch_log(servers: str, topic: str, accounts: int, total: int) -> Iterator[int]:
    balances = Balances(accounts, total)
    place = TopicPartition(topic, 0)
    settings = {
        "bootstrap.servers": servers, "isolation.level": "read_committed", "auto.offset.reset": "earliest",
        "max.partition.fetch.bytes": FETCH_BYTES, "fetch.max.bytes": FETCH_BYTES,
    }  # fmt: skip
    with Consumer(settings) as consumer:
        consumer.assign([place])
        while True:
            try:
                records = consumer.poll(timeout_ms=100, max_records=10**6)
            except KafkaError:  # the broker was killed
                records = []
            for record in records:
                balances.take(decoded(record))
            balances.check()
            yield balances.seen


def watch_copy(url: str, accounts: int, total: int) -> Iterator[int]:
    """Batches of a sink end where transactions of the log end, as long as they are not cut at `batch_rows`."""
    looks = 0
    while True:
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                while True:
                    [found] = connection.execute("select count(*), coalesce(sum(balance), 0) from accounts").fetchall()
                    assert found in ((0, 0), (accounts, total)), f"the copy has {found[0]} accounts with {found[1]}"
                    looks += found[0] > 0
                    yield looks
        except psycopg.OperationalError:  # the database was killed
            yield looks
