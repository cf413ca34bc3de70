"""How fast connectors are, on this machine: `python -m tests.connect.bench`, or `make bench-connectors`.

Everything runs here: PostgreSQL, the broker, the connector. A figure is the median of the rounds, with the lowest and
the highest beside it; a ratio is that of figures of the same round. By the clock they need a machine that does nothing
else; what each process has computed for a row says something on a busy one too. The table is written to
bench-results/connectors.md as well.

    snapshot   rows of a table, read and written as the first snapshot
    changes    rows that transactions of 100 have inserted, read from PostgreSQL's log and written to a topic, compared
               with PostgreSQL's own pg_recvlogical, which writes the same stream to a file as it comes
    upsert     records of a topic written to a table by key, compared with COPY and a merge of the same rows, which are
               not read from anywhere
    append     records of a topic written to a table without a key
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import psycopg

from oncelog.client import Producer
from oncelog.connect.kinds import Kind, PostgresSinkKind, PostgresSourceKind
from oncelog.connect.progress import Progress
from oncelog.connect.settings import sink_settings, source_settings
from oncelog.connect.supervisor import Supervisor
from oncelog.testing.broker import BrokerProcess, broker
from tests.connect.postgres import PostgresServer, postgres_server

ROUNDS = 3
ROWS = 600_000
"""With fewer, the start of a connector, some 80 ms, would be much of what is measured."""
COLUMNS = "(id bigint primary key, name text, amount numeric, at timestamptz)"
MERGE = "on conflict (id) do update set name = excluded.name, amount = excluded.amount, at = excluded.at"
BATCH = 10_000


CHANGES_GOAL = 50_000
UPSERT_GOAL = 0.8
REPORT = Path("bench-results/connectors.md")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Measured(NamedTuple):
    """Of so many rows."""

    rows: int
    wall_s: float
    cpu_s: dict[str, float]
    """By process."""

    @property
    def rate(self) -> float:
        return self.rows / self.wall_s


class Meter:
    def __init__(self, postgres_pid: int, broker_pid: int) -> None:
        self._postgres, self._broker = postgres_pid, broker_pid

    def measure(self, rows: int, work: Callable[[], object]) -> Measured:
        cpu_s, started_s = self._cpu_s(), time.perf_counter()
        work()
        wall_s = time.perf_counter() - started_s
        return Measured(rows, wall_s, {name: now_s - cpu_s[name] for name, now_s in self._cpu_s().items()})

    def _cpu_s(self) -> dict[str, float]:
        servers = (self._postgres, *_children(self._postgres))
        return {
            "this process": time.process_time(),
            "PostgreSQL": sum(map(_cpu_s_of, servers)),
            "the broker": _cpu_s_of(self._broker),
        }


def _children(pid: int) -> Iterable[int]:
    return map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def _cpu_s_of(pid: int) -> float:
    """With its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has ended meanwhile, and is among those of its parent now
    return sum(map(int, fields[11:15])) * _TICK_S


def run_until_current(kind: Kind) -> Progress:
    """As `oncelog connect run --until-current` does."""
    supervisor = Supervisor([kind], lambda _: None, until_current=True)
    supervisor.start()
    while not supervisor.has_ended(1):
        pass
    [status] = supervisor.statuses
    if status.state != "ended" or status.restarts:
        raise RuntimeError(f"{status.name} is {status.state}: {status.error}")
    return status.progress


class Round:
    def __init__(self, number: int, rows: int, postgres: PostgresServer, log: BrokerProcess) -> None:
        self.number, self.rows, self.name = number, rows, f"bench-{number}"
        self.client = {"bootstrap.servers": log.bootstrap_servers}
        self.meter = Meter(postgres.pid, log.pid)
        self.programs = postgres.programs
        self.url = postgres.create_database(self.name)
        self.sql = psycopg.connect(self.url, autocommit=True)
        for table in ("items", "plain", "copied"):
            self.sql.execute(f"create table {table} {COLUMNS}")
        self.sql.execute("create table appended (id bigint, name text, amount numeric, at timestamptz)")
        self.sql.execute("create publication p for table items")

    def measured(self, work: Callable[[], object]) -> Measured:
        return self.meter.measure(self.rows, work)

    def source(self) -> Progress:
        given = {"name": self.name, "url": self.url, "publication": "p", "topic": f"{self.name}.{{table}}"}
        return run_until_current(PostgresSourceKind(source_settings(given, self.client)))

    def insert(self, start: int, step: int) -> None:
        for first in range(start, start + self.rows, step):
            series = f"generate_series({first}, {first + step - 1}) n"
            self.sql.execute(f"insert into items select n, 'name ' || n, n * 1.5, now() from {series}")

    def snapshot(self) -> Measured:
        self.insert(0, self.rows)
        return self.measured(self.source)

    def changes(self) -> dict[str, Measured]:
        self.receive_logical("--create-slot", "--plugin", "pgoutput")
        self.insert(self.rows, 100)
        figures = {"changes": self.measured(self.source)}
        [(end,)] = self.sql.execute("select pg_current_wal_flush_lsn()::text").fetchall()
        options = ("-o", "proto_version=1", "-o", "publication_names=p")
        arguments = ("--start", "--endpos", end, "--no-loop", "--file", "/dev/null", *options)
        figures["pg_recvlogical"] = self.measured(lambda: self.receive_logical(*arguments))
        self.receive_logical("--drop-slot")
        return figures

    def receive_logical(self, *arguments: str) -> None:
        command = [self.programs / "pg_recvlogical", "--dbname", self.url, "--slot", "peer", *arguments]
        subprocess.run(command, check=True, timeout=600)

    def records(self) -> list[dict[str, object]]:
        stamp = "2026-01-01 00:00:00+00"
        return [{"id": n, "name": f"name {n}", "amount": f"{n}.5", "at": stamp} for n in range(self.rows)]

    def produce(self) -> None:
        with Producer({**self.client, "linger.ms": 20, "batch.size": 256 * 1024}) as producer:
            for row in self.records():
                producer.send(f"{self.name}.rows", json.dumps(row), json.dumps({"id": row["id"]}))

    def sink(self, table: str, mode: str) -> Measured:
        given = {"name": f"{self.name}-{mode}", "url": self.url, "topics": f"{self.name}.rows", "table": table,
                 "mode": mode, "batch_rows": BATCH}  # fmt: skip
        kind = PostgresSinkKind(sink_settings(given, self.client))
        return self.measured(lambda: run_until_current(kind))

    def plain(self) -> Measured:
        rows = [tuple(row.values()) for row in self.records()]
        self.sql.execute("create temp table stage as select * from plain with no data")

        def merge() -> None:
            for first in range(0, self.rows, BATCH):
                with self.sql.transaction():
                    with self.sql.cursor() as cursor, cursor.copy("copy stage from stdin") as copy:
                        for row in rows[first : first + BATCH]:
                            copy.write_row(row)
                    self.sql.execute(f"insert into plain select * from stage {MERGE}")
                    self.sql.execute("truncate stage")

        return self.measured(merge)

    def measure(self) -> dict[str, Measured]:
        figures = {"snapshot": self.snapshot(), **self.changes()}
        self.produce()
        both = {"COPY and merge": self.plain, "upsert": lambda: self.sink("copied", "upsert")}
        for name in sorted(both, reverse=bool(self.number % 2)):
            figures[name] = both[name]()
        figures["append"] = self.sink("appended", "append")
        self.sql.close()
        return figures


def report(rounds: list[dict[str, Measured]]) -> list[str]:
    """A table of Markdown."""
    rates: dict[str, list[float]] = defaultdict(list)
    for figures in rounds:
        for name, measured in figures.items():
            rates[name].append(measured.rate)

    def ratio(name: str, other: str) -> list[float]:
        return [figures[name].rate / figures[other].rate for figures in rounds]

    to_copy = ratio("upsert", "COPY and merge")
    goals = {"changes": (f"at least {CHANGES_GOAL:,} rows/s", statistics.median(rates["changes"]) >= CHANGES_GOAL)}
    beside = {
        "changes": f"{_spread(ratio('changes', 'pg_recvlogical'), '.2f')} of pg_recvlogical",
        "upsert": f"{_spread(to_copy, '.2f')} of COPY and merge",
    }
    goals["upsert"] = (f"at least {UPSERT_GOAL} of COPY and merge", statistics.median(to_copy) >= UPSERT_GOAL)
    lines = ["| what | rows/s | ratio | goal | CPU time per row, in us |", "| --- | --- | --- | --- | --- |"]
    for name, found in rates.items():
        goal, is_met = goals.get(name, ("", True))
        state = "" if not goal else ": met" if is_met else ": missed"
        cells = (name, _spread(found, ",.0f"), beside.get(name, ""), goal + state, _computed(rounds, name))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _spread(values: list[float], style: str) -> str:
    return f"{statistics.median(values):{style}} ({min(values):{style}} to {max(values):{style}})"


def _computed(rounds: list[dict[str, Measured]], name: str) -> str:
    parts = {
        process: statistics.median(figures[name].cpu_s[process] / figures[name].rows * 1e6 for figures in rounds)
        for process in rounds[0][name].cpu_s
    }
    return ", ".join(f"{process} {us:.1f}" for process, us in parts.items() if us >= 0.05)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.connect.bench", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of each figure (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds (default: %(default)s)")
    options = parser.parse_args()
    with postgres_server(settings={"shared_buffers": "256MB"}) as postgres, broker() as log:
        rounds = [Round(number, options.rows, postgres, log).measure() for number in range(options.rounds)]
    text = "\n".join(report(rounds)) + "\n"
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(text)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
