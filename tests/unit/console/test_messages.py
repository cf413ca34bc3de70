"""Records: the latest of each key, one in full, and what bounds a page of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import pytest

from oncelog.client import Producer
from oncelog.console import messages, page
from oncelog.console.record import hex_lines, json_tree, part_row, schema_id
from oncelog.testing import BrokerProcess
from tests.unit.client.poison import PROBLEMS, READABLE, make_poisoned_topic
from tests.unit.console.conftest import Browser


@pytest.fixture
def producer(shared_broker: BrokerProcess) -> Iterator[Producer]:
    settings = {"compression.type": "gzip", "max.request.size": 4_000_000}
    with Producer({"bootstrap.servers": shared_broker.bootstrap_servers, **settings}) as made:
        yield made


def test_the_latest_record_of_each_key_without_what_was_deleted(
    browser: Browser, topic: str, producer: Producer
) -> None:
    for key, value in (("a", "1"), ("b", "1"), ("c", "1"), ("a", "2"), ("b", None), ("d", "1"), ("a", "3")):
        producer.send(topic, None if value is None else value.encode(), key=key.encode())
    producer.flush()
    path = f"/topics/{topic}/messages?view=keys"
    found = browser.data(path)
    assert [(row["offset"], row["key"], row["value"]) for row in found["rows"]] == [
        (2, "c", "1"),
        (5, "d", "1"),
        (6, "a", "3"),
    ]
    assert (found["key_count"], found["at_end"]) == (3, True)
    newest = browser.data(path + "&limit=1")
    assert [row["key"] for row in newest["rows"]] == ["a"]
    assert newest["key_count"] == 3
    assert [row["key"] for row in browser.data(path + "&start=6")["rows"]] == ["a"]
    assert "3 keys in these offsets have a record" in browser.get(path).text


def test_records_before_one_that_cannot_be_read_are_shown_and_its_place_is_named(
    browser: Browser, shared_broker: BrokerProcess, topic: str
) -> None:
    make_poisoned_topic(shared_broker, topic)
    start, seen, places = 0, [], []
    while start < 9:
        found = browser.data(f"/topics/{topic}/messages?start={start}")
        seen += [row["value"].encode() for row in found["rows"]]
        if "cannot be read" in found["stopped_by"]:
            places.append((found["stopped_by"].partition(" cannot")[0], found["next"]))
        start = found["next"]
    assert seen == READABLE
    where = f"records of topic {topic}, partition 0: offsets"
    assert places == [(f"{where} {first} to {end - 1}", end) for first, end in PROBLEMS]


def test_a_key_that_was_only_written_in_an_aborted_transaction_is_not_there(
    browser: Browser, topic: str, transactional: Callable[[str], Producer]
) -> None:
    producer = transactional(f"keys-{topic}")
    for value, end in ((b"1", producer.commit_transaction), (b"2", producer.abort_transaction)):
        producer.begin_transaction()
        producer.send(topic, value, key=b"a")
        producer.flush()
        end()
    path = f"/topics/{topic}/messages?view=keys&isolation="
    assert [(row["value"], row["outcome"]) for row in browser.data(path + "read_committed")["rows"]] == [
        ("1", "committed")
    ]
    assert [(row["value"], row["outcome"]) for row in browser.data(path + "read_uncommitted")["rows"]] == [
        ("2", "aborted")
    ]


def test_keys_are_bounded(browser: Browser, topic: str, producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        producer.send(topic, b"x", key=str(number).encode())
    producer.flush()
    monkeypatch.setattr(messages, "KEYS_MAX", 4)
    found = browser.data(f"/topics/{topic}/messages?view=keys")
    assert (found["key_count"], found["next"], found["stopped_by"]) == (4, 4, "the limit of 4 keys")


def test_small_batches_that_unfold_into_much_do_not_fill_the_memory(
    browser: Browser, topic: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        producer.send(topic, bytes(600_000)).result(30)
    monkeypatch.setattr(messages, "CONTENT_BYTES_MAX", 5 * messages.VALUE_BYTES_MAX)
    found = browser.data(f"/topics/{topic}/messages?start=earliest")
    assert found["stopped_by"].startswith("the limit of") and found["stopped_by"].endswith("MB on a page")
    assert [row["bytes"] for row in found["rows"]] == [600_000] * 5
    assert all(row["cut"] and len(row["value"]) == messages.VALUE_BYTES_MAX for row in found["rows"])
    assert browser.data(f"/topics/{topic}/messages?start={found['next']}")["rows"][0]["offset"] == 5


def test_a_search_that_takes_too_long_stops_between_two_batches(
    browser: Browser, topic: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        producer.send(topic, str(number).encode()).result(30)
    monkeypatch.setattr(messages, "BUDGET_S", 2.0)
    monkeypatch.setattr(messages.Needle, "matches", lambda *_: bool(time.sleep(2.1)))
    found = browser.data(f"/topics/{topic}/messages?start=earliest&q=none")
    assert (found["next"], found["stopped_by"], found["at_end"]) == (1, "the budget of 2 s", False)


def test_pages_that_read_records_at_the_same_time_are_bounded(
    browser: Browser, topic: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.send(topic, b"x").result(30)
    reading = threading.Semaphore(0)
    may_go_on = threading.Event()
    read = messages.read_messages

    def slow(*given: Any) -> Any:
        reading.release()
        assert may_go_on.wait(60)
        return read(*given)

    monkeypatch.setattr(messages, "read_messages", slow)
    monkeypatch.setattr(page, "SCAN_WAIT_S", 0.05)
    path = f"/topics/{topic}/messages"
    with ThreadPoolExecutor(page.SCANS_MAX) as pool:
        try:
            answers = [pool.submit(browser.get, path) for _ in range(page.SCANS_MAX)]
            for _ in answers:
                assert reading.acquire(timeout=60)
            for busy in (path, f"{path}/0/0"):
                answer = browser.get(busy)
                assert (answer.status, "Other pages of yours are searching" in answer.text) == (503, True)
            assert browser.get(f"/topics/{topic}").status == 200, "others are not held up"
        finally:
            may_go_on.set()
        assert [one.result(60).status for one in answers] == [200] * page.SCANS_MAX
    assert browser.get(f"{path}/0/0").status == 200


def test_a_page_that_fails_gives_back_its_right_to_read(
    browser: Browser, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(messages, "read_messages", lambda *_: 1 // 0)
        patch.setattr(page, "SCAN_WAIT_S", 0.05)
        for _ in range(page.SCANS_MAX + 1):
            assert browser.get(f"/topics/{topic}/messages").status == 500
    assert browser.get(f"/topics/{topic}/messages").status == 200


def test_a_record_in_full(browser: Browser, topic: str, transactional: Callable[[str], Producer]) -> None:
    producer = transactional(f"full-{topic}")
    producer.begin_transaction()
    producer.send(topic, b'{"order": {"lines": [1, "<b>"]}}', key=b"\x00\x00\x00\x00\x2a\xff", headers=[("h", b"1")])
    producer.send(topic, b"plain")
    producer.commit_transaction()
    first, second, marker = (browser.data(f"/topics/{topic}/messages/0/{offset}") for offset in range(3))
    assert (first["outcome"], first["kind"], first["transactional_id"]) == ("committed", "record", f"full-{topic}")
    assert (first["key"]["schema_id"], first["key"]["bytes"], "text" in first["key"]) == (42, 6, False)
    assert first["key"]["hex"].startswith("00000000  00 00 00 00 2a ff")
    assert first["value"]["text"] == '{"order": {"lines": [1, "<b>"]}}'
    assert first["headers"] == [{"name": "h", "value": "1"}]
    assert (first["sequence"], second["sequence"]) == (0, 1)
    assert second["batch"] == first["batch"]
    assert (first["batch"]["base_offset"], first["batch"]["last_offset"]) == (0, 1)
    assert (marker["kind"], marker["outcome"]) == ("commit marker", None)
    html = browser.get(f"/topics/{topic}/messages/0/0").text
    assert "<b>" not in html and "&lt;b&gt;" in html
    assert browser.get(f"/topics/{topic}/messages/0/3").status == 404
    assert browser.get(f"/topics/{topic}/messages/7/0").status == 400


def test_contents_are_downloaded_as_they_are(browser: Browser, topic: str, producer: Producer) -> None:
    contents = bytes(range(256)) * 8_000
    producer.send(topic, contents, key=b"<script>").result(30)
    shown = browser.data(f"/topics/{topic}/messages/0/0")["value"]
    assert (shown["bytes"], shown["cut"]) == (len(contents), True)
    connection = HTTPConnection("127.0.0.1", browser.port, timeout=60)
    connection.request("GET", f"/topics/{topic}/messages/0/0?download=value")
    answer = connection.getresponse()
    assert answer.read() == contents
    assert answer.getheader("Content-Type") == "application/octet-stream"
    assert answer.getheader("Content-Disposition") == 'attachment; filename="value.bin"'
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    connection.close()


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b"{", b"[1", b'"text"', b"[" + b"1," * 3_000 + b"1]", b"[" * 50 + b"]" * 50, b"\xff["]
)
def test_what_is_no_tree_of_a_page_is_shown_as_text(data: bytes) -> None:
    assert json_tree(data) is None
    assert part_row(data) is not None


def test_a_tree_has_names_and_numbers_of_children() -> None:
    assert json_tree(b'{"a": [true, null]}') == {
        "name": "",
        "text": "{1}",
        "children": [
            {
                "name": "a",
                "text": "[2]",
                "children": [
                    {"name": "0", "text": "true", "children": []},
                    {"name": "1", "text": "null", "children": []},
                ],
            }
        ],
    }


def test_hex_and_schema_ids() -> None:
    first, second = hex_lines(b"abc\x00" + bytes(12) + b"z").splitlines()
    assert first == "00000000  61 62 63 00 00 00 00 00 00 00 00 00 00 00 00 00  abc............."
    assert second == "00000010  7a" + " " * 47 + "z"
    assert schema_id(b"\x00\x00\x00\x00") is None
    assert schema_id(b"\x01\x00\x00\x00\x01") is None
