"""Rows as files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from oncelog.cli.main import cli
from oncelog.client import Admin, Producer, TopicPartition
from oncelog.console.export import export
from oncelog.console.messages import VALUE_BYTES_MAX
from oncelog.testing import BrokerProcess
from tests.unit.console.conftest import Browser
from tests.waiting import wait_until

LONG = VALUE_BYTES_MAX + 1_000
"""Cut on a page."""


def test_rows_as_csv_keep_every_column_and_no_formula() -> None:
    rows = [{"a": "=1+1", "b": None}, {"b": 7, "c": ["x", "y"]}, {"a": 'say "hi",\nthen go', "b": True}]
    found = list(csv.DictReader(io.StringIO(export(rows, "csv"))))
    assert [row["a"] for row in found] == ["'=1+1", "", 'say "hi",\nthen go']
    assert [row["b"] for row in found] == ["", "7", "true"]
    assert json.loads(found[1]["c"]) == ["x", "y"]


def test_messages_are_downloaded(browser: Browser, topic: str, transactional: Callable[[str], Producer]) -> None:
    producer = transactional(f"{topic}-export")
    producer.begin_transaction()
    for value in ("one", "=two", "dr\u00e9i"):
        producer.send(topic, value, key="k")
    producer.commit_transaction()
    address = f"/topics/{topic}/messages?partition=0&start=earliest"
    lines = browser.get(f"{address}&format=jsonl")
    assert lines.headers["content-disposition"] == 'attachment; filename="messages.jsonl"'
    assert [json.loads(line)["value"] for line in lines.text.splitlines()] == ["one", "=two", "dr\u00e9i"]
    table = browser.get(f"{address}&format=csv")
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    assert [row["value"] for row in csv.DictReader(io.StringIO(table.text))] == ["one", "'=two", "dr\u00e9i"]
    assert "format=csv" in browser.get(address).text


def test_every_table_can_be_had_as_a_file(
    browser: Browser, topic: str, admin: Admin, transactional: Callable[[str], Producer]
) -> None:
    group = f"tables-{topic}"
    producer = transactional(f"tables-{topic}")
    producer.begin_transaction()
    producer.send(topic, b"x").result(30)
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    wait_until(lambda: browser.get(f"/groups/{group}").status == 200)
    wait_until(lambda: any(one["topic"] == topic for one in browser.data("/hanging")["open"]))
    expected = {
        "/": {"sentences": "text", "open transactions": "transactional_id"},
        f"/topics/{topic}": {"partitions": "leader", "settings": "source"},
        f"/topics/{topic}/timeline": {"transactions": "first_offset"},
        f"/topics/{topic}/producers": {"rows": "producer_id"},
        f"/groups/{group}": {"offsets": "committed", "members": ""},
        f"/transactions/tables-{topic}": {"changes": "what"},
        "/hanging": {"open transactions": "start_offset", "hanging transactions": ""},
        "/brokers": {"rows": "address"},
        "/brokers/1": {"directories": "path", "settings": "name"},
    }
    for path, tables in expected.items():
        html = browser.get(path).text
        for name, column in tables.items():
            query = f"export={name.replace(' ', '+')}&format="
            assert query.replace("&", "&amp;") + "csv" in html, f"{path} has no link to {name}"
            table = browser.get(f"{path}?{query}csv")
            assert table.status == 200
            rows = list(csv.DictReader(io.StringIO(table.text)))
            lines = [json.loads(line) for line in browser.get(f"{path}?{query}jsonl").text.splitlines()]
            assert bool(rows) == bool(lines) == bool(column), f"{name} of {path}"
            assert all(column in row for row in (*rows, *lines))
    answer = browser.get(f"/topics/{topic}?format=csv&export=settings")
    assert answer.headers["content-disposition"] == 'attachment; filename="topic-settings.csv"'
    assert browser.get(f"/topics/{topic}?format=csv&export=nonsense").status == 400
    producer.abort_transaction()


def test_exported_messages_are_what_produce_reads(
    browser: Browser, topic: str, admin: Admin, shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    """Whole, with keys, headers and times, and nothing that the form does not know."""
    servers = shared_broker.bootstrap_servers
    with Producer({"bootstrap.servers": servers, "max.request.size": 4_000_000}) as producer:
        producer.send(topic, "x" * LONG, key="long", timestamp_ms=1_700_000_000_000)
        producer.send(topic, b"\x00\xff", key=b"\xfe", headers=[("h", b"\xff"), ("h", None), ("t", b"text")])
        producer.send(topic, None, key="gone")
        producer.send(topic, '{"a": [1]}')
    exported = tmp_path / "messages.jsonl"
    exported.write_text(browser.get(f"/topics/{topic}/messages?start=earliest&format=jsonl").text)
    copy = f"{topic}-copy"
    admin.create_topics([copy])
    arguments = ["produce", copy, str(exported), "-F", "json", "-q", "-b", servers]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    wait_until(lambda: browser.get(f"/topics/{copy}").status == 200)
    first, second = (
        [
            json.loads(line)
            for line in browser.get(f"/topics/{name}/messages?start=earliest&format=jsonl").text.splitlines()
        ]
        for name in (topic, copy)
    )
    assert len(first) == 4
    assert [{**row, "topic": ""} for row in first] == [{**row, "topic": ""} for row in second]
    assert len(first[0]["value"]) == LONG
    table = csv.DictReader(io.StringIO(browser.get(f"/topics/{topic}/messages?start=earliest&format=csv").text))
    assert len(next(table)["value"]) == LONG
    assert len(browser.data(f"/topics/{topic}/messages?start=earliest")["rows"][0]["value"]) == VALUE_BYTES_MAX


def test_markers_are_no_messages_of_a_file(
    browser: Browser, topic: str, transactional: Callable[[str], Producer]
) -> None:
    producer = transactional(f"{topic}-markers")
    producer.begin_transaction()
    producer.send(topic, "one")
    producer.commit_transaction()
    path = f"/topics/{topic}/messages?start=earliest&isolation=read_uncommitted"
    wait_until(lambda: len(browser.data(path)["rows"]) == 2)
    assert [json.loads(line)["value"] for line in browser.get(f"{path}&format=jsonl").text.splitlines()] == ["one"]


def test_a_page_without_rows_says_so(browser: Browser, topic: str) -> None:
    answer = browser.get(f"/changes/reset?group=g&topic={topic}&to=latest&format=csv")
    assert answer.status == 400
    assert "no rows to export" in answer.text
