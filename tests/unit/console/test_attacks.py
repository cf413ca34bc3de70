"""What somebody tries who means harm: by names, addresses, headers, connections and passwords."""

from __future__ import annotations

import csv
import io
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from html.parser import HTMLParser
from urllib.parse import quote

import pytest

from oncelog import http_server
from oncelog.client import Admin, OffsetAndMetadata, Producer, TopicPartition
from oncelog.console import events, visits
from oncelog.console.export import export
from oncelog.console.visits import COOKIE, Failures, Sessions, TooManyFailures
from oncelog.testing import BrokerProcess
from tests.unit.console.conftest import Browser, served, serving
from tests.unit.console.test_log_in import cookie_of, log_in, secured_broker, settings_of
from tests.waiting import wait_until

EVIL = "../\"'><script>alert(1)</script><img src=x onerror=alert(2)>\u202e{{7*7}}"


class Loads(HTMLParser):
    """Whatever a page would run or load, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str | None] = []
        self.handlers: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        if tag == "script":
            self.scripts.append(given.get("src"))
        self.handlers += [name for name in given if name.startswith("on")]
        self.links += [given[name] or "" for name in ("href", "action", "src") if name in given]


@pytest.fixture
def evil_names(
    browser: Browser, topic: str, admin: Admin, transactional: Callable[[str], Producer]
) -> Iterator[list[str]]:
    """An open transaction, a group, records and a stored note that are all named to break out of a page."""
    admin.alter_group_offsets(EVIL, {TopicPartition(topic, 0): 0})
    producer = transactional(EVIL)
    producer.begin_transaction()
    producer.send(topic, EVIL.encode(), key=EVIL.encode(), headers=[(EVIL, EVIL.encode())])
    place = {TopicPartition(topic, 0): OffsetAndMetadata(0, metadata=EVIL)}
    producer.send_offsets_to_transaction(place, f"{EVIL}-sink")
    producer.flush()
    wait_until(lambda: EVIL in [one["transactional_id"] for one in browser.data("/hanging")["open"]])
    name = quote(EVIL, safe="")
    yield [
        "/",
        "/transactions",
        f"/transactions/{name}",
        "/hanging",
        "/groups",
        f"/groups/{name}",
        f"/groups/{name}-no-such-group",
        f"/pipelines/{name}",
        f"/topics/{topic}/timeline?table=all",
        f"/topics/{topic}/producers",
        f"/topics/{topic}/messages?start=earliest&isolation=read_uncommitted&q={name}",
        f"/topics/{topic}/messages/0/0",
        "/topics/__consumer_offsets/messages?start=earliest&isolation=read_uncommitted",
        "/topics/__transaction_state/messages?start=earliest&partition=1",
        f"/changes/fence?id={name}",
        f"/changes/reset?group={name}&topic={topic}&to={name}",
        f"/topics/{name}",
        f"/brokers?page={name}",
        f"/{name}",
    ]
    producer.abort_transaction()


def test_no_name_gets_out_of_the_text_of_a_page(browser: Browser, evil_names: list[str]) -> None:
    shown = 0
    for path in evil_names:
        answer = browser.get(path)
        found = Loads(answer.text)
        assert found.scripts == ["/static/console.js"], path
        assert (found.handlers, found.tags & {"img", "iframe", "object", "base"}) == ([], set()), path
        assert [one for one in found.links if not one.startswith(("/", "?", "#"))] in ([], ["1"]), path
        assert not any(one.startswith("//") or "/../" in one for one in found.links), path
        assert "49" not in answer.text.partition("{{7*7}}")[2][:4]
        shown += "alert(1)" in answer.text
    assert shown > 10, "the names are on the pages"


def test_a_link_to_a_thing_with_a_strange_name_leads_to_it(browser: Browser, evil_names: list[str]) -> None:
    links = {one for one in Loads(browser.get("/transactions").text).links if "alert" in one}
    (link,) = links
    assert browser.data(link)["transactional_id"] == EVIL
    (group,) = {one for one in Loads(browser.get("/groups").text).links if one.endswith("7D%7D")}
    assert browser.data(group)["group"] == EVIL


@pytest.mark.parametrize(
    "path",
    [
        "/static/../application.py",
        "/static/%2e%2e/application.py",
        "/static/..%2fapplication.py",
        "/static/%2e%2e%2f%2e%2e%2f%2e%2e%2f%2e%2e%2f%2e%2e%2fetc/passwd",
        "/static//etc/passwd",
        "/static/..\\application.py",
        "/static/",
    ],
)
def test_only_the_files_of_the_console_are_served(browser: Browser, path: str) -> None:
    answer = browser.get(path)
    assert answer.status in (404, 405)
    assert "import" not in answer.text and "root:" not in answer.text


def test_no_text_of_others_gets_into_a_header(browser: Browser, topic: str) -> None:
    for path in ("/topics/x%0d%0aSet-Cookie:%20a=b", f"/topics/{topic}/messages?format=csv&q=%0d%0aX-Evil:%201"):
        answer = browser.get(path)
        assert "set-cookie" not in answer.headers
        assert "x-evil" not in answer.headers
        assert "\n" not in "".join(answer.headers.values())


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1"])
def test_a_spreadsheet_runs_nothing(text: str) -> None:
    _, (cell, *_) = csv.reader(io.StringIO(export([{"key": text}], "csv")))
    assert cell == f"'{text}"


def test_a_spreadsheet_that_splits_at_semicolons_sees_one_cell() -> None:
    assert export([{"key": 'a;=1+1;"', "offset": 7}], "csv").splitlines()[1] == '"a;=1+1;""",7'


@pytest.mark.parametrize("host", ["127.0.0.1.evil.example", "evil.example#127.0.0.1", "127.0.0.1@evil.example", "[::1"])
def test_a_host_that_only_looks_like_this_machine_is_refused(browser: Browser, host: str) -> None:
    assert browser.get("/", Host=host).status in (400, 403)


def test_streams_are_bounded_and_given_back(shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "STREAMS_MAX", 3)
    monkeypatch.setattr(events.EventStreams.__init__, "__defaults__", (3,))
    with serving(shared_broker.bootstrap_servers) as browser:
        with ExitStack() as stack:
            streams = [stack.enter_context(browser.stream("/events")) for _ in range(3)]
            assert [one.status for one in streams] == [200] * 3
            for one in streams:
                assert one.readline() == b"retry: 2000\n"
            assert browser.get("/events").status == 503
            assert browser.get("/").status == 200, "pages are still there"
        wait_until(lambda: is_streamed(browser))


def is_streamed(browser: Browser) -> bool:
    with browser.stream("/events") as answer:
        return answer.status == 200


def is_cut_off(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"GET / HT"])
def test_who_never_finishes_a_request_is_cut_off(
    shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    with serving(shared_broker.bootstrap_servers) as browser:
        with monkeypatch.context() as patch, socket.create_connection(("127.0.0.1", browser.port), timeout=120) as slow:
            patch.setattr(http_server, "LOOK_EVERY_S", 0.1)
            slow.sendall(sent)
            assert is_cut_off(slow)
        assert browser.get("/").status == 200


def test_a_stream_is_not_cut_off(shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(shared_broker.bootstrap_servers) as browser, browser.stream("/events") as answer:
        monkeypatch.setattr(http_server, "LOOK_EVERY_S", 0.5)
        monkeypatch.setattr(http_server, "ANSWER_S", 0.5)
        with browser.stream("/events") as other:
            numbers, until_s = dict.fromkeys((answer, other), 0), time.monotonic() + 3
            while min(numbers.values()) <= 10 or time.monotonic() < until_s:
                for one in numbers:
                    line = one.readline()
                    assert line, "it was cut off"
                    numbers[one] += line.startswith(b"id: ")


def test_a_form_that_never_arrives_does_not_hold_anything(
    shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncelog.console import application

    monkeypatch.setattr(application, "FORM_S", 0.1)
    with (
        serving(shared_broker.bootstrap_servers) as browser,
        socket.create_connection(("127.0.0.1", browser.port), timeout=120) as slow,
    ):
        head = f"POST /changes/fence HTTP/1.1\r\nHost: {browser.host}\r\nOrigin: http://{browser.host}\r\n"
        head += "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\nid=x"
        slow.sendall(head.encode())
        assert slow.recv(4096).startswith(b"HTTP/1.1 400")


# Log-ins


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with secured_broker(tmp_path_factory.mktemp("attacked")) as found:
        yield found


def test_passwords_cannot_be_tried_out_one_after_the_other(secured: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    settings = settings_of(secured)
    sessions = Sessions(settings, clock_s=lambda: now_s[0])
    monkeypatch.setattr(visits, "FAILURES_MAX", 2)
    try:
        with served(sessions, settings) as browser:
            assert [log_in(browser, "sam", word).status for word in ("a", "b", "c")] == [401, 401, 429]
            assert log_in(browser, "sam", "pencil").status == 429, "the right one is not told from others"
            now_s[0] += visits.FAILURES_S + 1
            assert log_in(browser, "sam", "pencil").status == 303
    finally:
        sessions.close()


def test_failures_are_counted_by_address_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "ADDRESSES_MAX", 2)
    failures = Failures(lambda: 0.0)
    for _ in range(visits.FAILURES_MAX):
        failures.add("10.0.0.1")
    with pytest.raises(TooManyFailures):
        failures.check("10.0.0.1")
    failures.check("10.0.0.2")
    failures.add("10.0.0.2")
    failures.add("10.0.0.3")
    failures.check("10.0.0.1")


def test_a_session_is_always_a_new_one(secured: str) -> None:
    """A token that somebody else has put into the browser, or that an earlier user has left there, gets no rights."""
    settings = settings_of(secured)
    sessions = Sessions(settings)
    try:
        with served(sessions, settings) as browser:
            planted = {"Cookie": f"{COOKIE}=planted"}
            form = {"user": "sam", "password": "pencil", "next": "/"}
            first = cookie_of(browser.post("/log-in", form, **planted))
            assert first != planted
            assert browser.get("/topics", **planted).status == 303
            second = cookie_of(browser.post("/log-in", form, **first))
            assert second != first
            assert browser.get("/topics", **first).status == 303, "the earlier session has ended"
            assert browser.get("/topics", **second).status in (200, 503)
    finally:
        sessions.close()
