"""`oncelog connect` as people start it: a source and a sink in one file, metrics, reports, signals, exit codes."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from oncelog.client import Producer
from oncelog.connect.progress import Status
from oncelog.connect.status_topic import STATUS_TOPIC, StatusWriter, read_status
from oncelog.janitor import janitor
from oncelog.testing.zookeeper import free_ports
from tests.waiting import wait_until

FILE = """
[connectors.{name}-in]
kind = "postgres-source"
url = "${{SHOP}}"
publication = "shop"
topic = "{name}.{{table}}"

[connectors.{name}-out]
kind = "sqlite-sink"
url = "{target}"
topics = ["{name}.orders"]
table = "orders"
"""


def oncelog(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "oncelog", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    janitor.take("process", process.pid)
    return process


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    janitor.leave("process", process.pid)
    return process.returncode, out, err


@pytest.mark.long
def test_a_database_is_copied_until_a_signal_comes(
    database: str, servers: str, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    name, target, file = unique("shop"), tmp_path / "copy.db", tmp_path / "shop.toml"
    file.write_text(FILE.format(name=name, target=target))
    with sqlite3.connect(target) as copy:
        copy.execute("create table orders (id integer primary key, item text)")
    at_cluster = ["-b", servers]

    code, out, err = finished(oncelog("connect", "check", str(file), *at_cluster, SHOP=database))
    assert code == 1 and 'create publication "shop" for table ...;' in out, (out, err)
    code, _, err = finished(oncelog("connect", "check", str(file), *at_cluster))
    assert code == 1 and "the environment variable SHOP is not set" in err

    running = oncelog("connect", "run", str(file), *at_cluster, SHOP=database)
    assert running.stderr is not None
    line = next(line for line in running.stderr if line.startswith(f"{name}-in: stopped"))
    assert "there is no publication shop" in line
    running.send_signal(signal.SIGINT)
    assert finished(running)[0] == 1

    with psycopg.connect(database, autocommit=True) as shop:
        shop.execute("create table orders (id int primary key, item text)")
        shop.execute("insert into orders values (1, 'tea')")
        shop.execute("create publication shop for table orders")
        port = free_ports(1)[0]
        running = oncelog("connect", "run", str(file), *at_cluster, "--metrics", f"127.0.0.1:{port}", SHOP=database)
        shop.execute("insert into orders values (2, 'cake')")
        wait_until(lambda: running.poll() is not None or copied(target) == [(1, "tea"), (2, "cake")])
        shop.execute("delete from orders where id = 1")
        wait_until(lambda: running.poll() is not None or copied(target) == [(2, "cake")])
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    assert f'oncelog_connect_records_total{{connector="{name}-in"}} 3.0' in metrics
    running.send_signal(signal.SIGTERM)
    code, out, err = finished(running)
    assert code == 0, err
    assert f"{name}-in: ended" in out and f"{name}-out: ended" in out
    code, out, _ = finished(oncelog("connect", "status", *at_cluster))
    assert code == 0
    [line] = [line.split() for line in out.splitlines() if line.startswith(f"{name}-in ")]
    assert line[1:3] == ["ended", "3"]


def copied(target: Path) -> list[tuple[int, str]]:
    with sqlite3.connect(target) as copy:
        return copy.execute("select id, item from orders order by id").fetchall()


def test_a_report_is_removed_by_a_tombstone_and_other_records_are_passed_over(
    servers: str, unique: Callable[[str], str]
) -> None:
    client = {"bootstrap.servers": servers}
    gone, kept = unique("gone"), unique("kept")
    with StatusWriter(client) as writer:
        for name in (gone, kept):
            writer.write(Status(name))
    with Producer(client) as producer:
        producer.send(STATUS_TOPIC, None, gone)
        for number, value in enumerate((b"no JSON", b"[" * 100_000, b"{}", b"7")):
            producer.send(STATUS_TOPIC, value, f"{kept}-{number}")
    names = {row["connector"] for row in read_status(client)}
    assert gone not in names and kept in names
