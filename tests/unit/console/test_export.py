"""Rows as files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable

from oncelog.client import Producer
from oncelog.console.export import export
from tests.unit.console.conftest import Browser


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


def test_a_page_without_rows_says_so(browser: Browser) -> None:
    answer = browser.get("/?format=csv")
    assert answer.status == 400
    assert "no rows to export" in answer.text
