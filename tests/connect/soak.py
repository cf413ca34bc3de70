"""All faults mixed for some minutes: `python -m tests.connect.soak --seconds 600 --seed 1`.

A bank in PostgreSQL, its changes in topics, the topics in another database. Connectors run as processes of their own.
Meanwhile they are killed, or paused while another instance takes over; broker and database are killed, connections are
cut, and answers of both are lost behind what was carried out. All the time one reader looks at the log and another one
at the copy: whatever they see has whole transactions and the bank's sum. At the end every row is compared, and every
transaction in the log: nothing missing, nothing twice, nothing half.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psycopg

from oncelog.client import Admin, NewTopic
from oncelog.connect.kinds import Kind, PostgresSinkKind, PostgresSourceKind
from oncelog.connect.settings import sink_settings, source_settings
from oncelog.connect.supervisor import SupervisedConnector
from oncelog.janitor import janitor
from oncelog.testing.broker import BrokerProcess, broker
from tests.connect.children import Child
from tests.connect.postgres import PostgresServer, postgres_server
from tests.connect.soak_middle import Middle
from tests.connect.soak_watchers import Watcher, watch_copy, watch_log
from tests.connect.test_postgres_source import Bank

FAULTS = ["kill source", "kill sink", "pause source", "pause sink", "kill broker", "kill database", "cut connections",
          "lose broker's answer", "lose database's answer"]  # fmt: skip
LOST_AT_ONCE = 3
SPARK_LIFE_S = 15.0
TABLES = ("accounts", "transfers")


class SparkLeg:
    """A driver in a process of its own, with its JVM; it ends by itself when broker or database are away."""

    def __init__(self, servers: str, url: str, folder: Path) -> None:
        self._arguments = [servers, url, str(folder / "checkpoint")]
        self._log = folder / "spark.log"
        self._process = self._start()

    def _start(self, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.connect.spark_leg", *self._arguments, *more]
        self._started_s = time.monotonic()
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        janitor.take("process", process.pid)
        return process

    def keep_running(self) -> int:
        """1 if it had to be started again."""
        if self._process.poll() is None:
            return 0
        self._process = self._start()
        return 1

    def kill_if_it_works(self) -> None:
        """One that has just been started would never come to anything."""
        if time.monotonic() - self._started_s > SPARK_LIFE_S:
            self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def finish(self) -> None:
        self.kill()
        code = self._start("--until-current").wait(300)
        assert code == 0, self._log.read_text()[-4000:]


class Soak:
    def __init__(self, postgres: PostgresServer, log: BrokerProcess, seed: int, folder: Path, *, spark: bool) -> None:
        self.postgres, self.log = postgres, log
        self.middle = Middle(log.bootstrap_servers, postgres.port, seed)
        self.dice = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.bank = Bank(postgres.create_database("bank"), log.bootstrap_servers, "soak")
        self.target = postgres.create_database("copy")
        with psycopg.connect(self.target) as connection:
            connection.execute("create table accounts (id bigint primary key, balance bigint, note text)")
            connection.execute("create table transfers (id bigint primary key, amount bigint)")
            connection.execute("create table spark_transfers (id bigint, amount bigint)")
        with Admin({"bootstrap.servers": log.bootstrap_servers}) as admin:
            admin.create_topics([NewTopic(f"soak.{table}", 1) for table in TABLES])
        total = 100 * Bank.ACCOUNTS
        self.watchers = {
            "records of accounts that a reader has seen, always whole": Watcher(
                lambda: watch_log(log.bootstrap_servers, self.bank.topic, Bank.ACCOUNTS, total), folder / "log.seen"
            ),
            "looks at the copy, always with the bank's sum": Watcher(
                lambda: watch_copy(self.target, Bank.ACCOUNTS, total), folder / "copy.seen"
            ),
        }
        self.children = {name: self._start(name) for name in ("source", "sink")}
        self.paused: list[tuple[str, Child]] = []
        self.spark = SparkLeg(log.bootstrap_servers, self.target, folder) if spark else None

    def _kind(self, name: str) -> Kind:
        client = {"bootstrap.servers": self.middle.servers, "default.api.timeout.ms": 20_000}
        if name == "source":
            return PostgresSourceKind(source_settings(self.bank.settings, client))
        topics = [f"soak.{table}" for table in TABLES]
        url = self.target.replace(f":{self.postgres.port}/", f":{self.middle.postgres_port}/")
        given = {"name": "soak-out", "url": url, "topics": topics, "table": "{topic}", "batch_ms": 20}
        return _SinkByTable(sink_settings(given, client))

    def _start(self, name: str, *, until_current: bool = False) -> Child:
        def run() -> None:
            connector = SupervisedConnector(self._kind(name), lambda status: None, until_current=until_current)
            connector.start()
            connector.join()
            if connector.status.state == "stopped":
                assert "has taken over" in connector.status.error, connector.status.error

        return Child(run)

    def step(self) -> None:
        for watcher in self.watchers.values():
            watcher.check()
        for _ in range(self.dice.randrange(1, 20)):
            self._transfer()
        fault = self.dice.choice(FAULTS if self.spark is None else [*FAULTS, "kill spark"])
        if self.spark is not None:
            self.counts["starts of Spark after a failure"] += self.spark.keep_running()
        self.counts[fault] += 1
        action, _, what = fault.partition(" ")
        if what in self.children:
            self._disturb(action, what)
        elif what == "spark" and self.spark is not None:
            self.spark.kill_if_it_works()
        elif action == "lose":
            for _ in range(LOST_AT_ONCE if what == "broker's answer" else 1):
                self.middle.lose(what.partition("'")[0])
                self._transfer()
        elif what == "broker":
            self.log.kill()
            self.log.start()
        elif what == "database":
            self.postgres.kill()
            self.postgres.start()
        else:
            self.bank.execute("select pg_terminate_backend(pid) from pg_stat_activity "
                              "where application_name like 'oncelog-connect-%'")  # fmt: skip
        if len(self.paused) > 3:
            self._wake()

    def _transfer(self) -> None:
        try:
            self.bank.transfer(self.dice)
            self.counts["transfers"] += 1
        except psycopg.OperationalError:
            self.counts["transfers whose outcome is unknown"] += 1

    def _disturb(self, action: str, name: str) -> None:
        child = self.children[name]
        if action == "kill":
            child.kill()
        else:
            child.signal(signal.SIGSTOP)
            self.paused.append((name, child))
        self.children[name] = self._start(name)

    def _wake(self) -> None:
        """Of two instances one must end by itself: the one that took over earlier, which is not always the elder."""
        name, woken = self.paused.pop(0)
        woken.signal(signal.SIGCONT)
        deadline_s = time.monotonic() + 120
        while not (woken.has_ended() or self.children[name].has_ended()):
            assert time.monotonic() < deadline_s, f"two instances of the {name} go on side by side"
            self._transfer()  # an idle sink notices with its next batch
        ended, self.children[name] = (woken, self.children[name]) if woken.has_ended() else (self.children[name], woken)
        assert ended.wait() == 0, "an old instance did not stop as it should"
        self.counts["old instances fenced"] += 1

    def finish(self) -> None:
        while self.paused:
            self._wake()
        for child in self.children.values():
            child.kill()
        for name in ("source", "sink"):
            assert self._start(name, until_current=True).wait(300) == 0
        for name, watcher in self.watchers.items():
            self.counts[name] = watcher.finish()
        self.counts.update(self.middle.lost())
        if self.spark is not None:
            self.spark.finish()
        records = self.bank.check()
        copies = {table: table for table in TABLES}
        if self.spark is not None:
            copies["spark_transfers"] = "transfers"
        for copy, table in copies.items():
            with psycopg.connect(self.bank.url) as source, psycopg.connect(self.target) as target:
                expected = source.execute(f"select * from {table} order by id").fetchall()
                found = target.execute(f"select * from {copy} order by id").fetchall()
            assert found == expected, f"{copy}: {len(expected)} rows became {len(found)}"
            self.counts[f"rows of {copy}, equal to the bank's"] = len(found)
        self.counts["records in the log, each once"] = len(records)

    def close(self) -> None:
        for child in [*self.children.values(), *(child for _, child in self.paused)]:
            child.kill()
        for watcher in self.watchers.values():
            watcher.close()
        self.middle.close()
        if self.spark is not None:
            self.spark.kill()


class _SinkByTable(PostgresSinkKind):
    """Topics `soak.accounts` to tables `accounts`."""

    def _open(self):  # type: ignore[no-untyped-def]
        sink = super()._open()
        sink._table_of = lambda topic: topic.removeprefix("soak.")  # type: ignore[method-assign]
        return sink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.connect.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spark", action="store_true", help="with a Spark pipeline into the same database")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oncelog-soak-") as folder:
        data = Path(folder) / "data"
        with postgres_server() as postgres, broker({"group.initial.rebalance.delay.ms": 0}, data_dir=data) as log:
            soak = Soak(postgres, log, options.seed, Path(folder), spark=options.spark)
            end_s = time.monotonic() + options.seconds
            try:
                while time.monotonic() < end_s:
                    soak.step()
                soak.finish()
            finally:
                soak.close()
    for name, count in sorted(soak.counts.items()):
        sys.stdout.write(f"{count:8d}  {name}\n")
    sys.stdout.write("       0  missing, twice or half\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
