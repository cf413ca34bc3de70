"""What pages show of a real broker, as HTML and as JSON."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser
from typing import Any

import pytest

from oncelog.client import Admin, OffsetAndMetadata, Producer, TopicPartition
from oncelog.console.pages import brokers, groups, pipelines, transactions
from oncelog.console.pages import topics as topic_pages
from oncelog.core.sink_note import Note
from oncelog.monitoring import pipelines as pipeline_states
from oncelog.testing import BrokerProcess
from oncelog.testing.zookeeper import free_ports
from tests.unit.console.conftest import Browser, serving
from tests.waiting import wait_until

Transactional = Callable[[str], Producer]
VOID = {"meta", "link", "input", "br", "hr", "img"}


class Structure(HTMLParser):
    """Checks that elements are nested rightly, and keeps what accessibility needs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.headings: list[int] = []
        self.tables = self.captions = 0
        self.heads_without_scope = 0
        self.ids: list[str] = []
        self.unlabelled: list[str] = []
        self.feed(text)
        self.close()
        assert self.stack == [], f"not closed: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if "id" in given:
            self.ids.append(given["id"] or "")
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        self.tables += tag == "table"
        self.captions += tag == "caption"
        self.heads_without_scope += tag == "th" and "scope" not in given
        if tag in ("input", "select") and given.get("type") != "hidden":
            named = "label" in self.stack or "id" in given
            if not named:
                self.unlabelled.append(str(given))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.stack and self.stack[-1] == tag, f"</{tag}> closes {self.stack[-3:]}"
            self.stack.pop()


def ids_of_open(browser: Browser, topic: str) -> list[str]:
    return [one["transactional_id"] for one in browser.data("/hanging")["open"] if one["topic"] == topic]


@pytest.fixture
def held(topic: str, transactional: Transactional, admin: Admin) -> tuple[str, Producer]:
    """A topic with a committed, an aborted and an open transaction, in this order, and a committed one behind that."""
    quick, slow = transactional(f"quick-{topic}"), transactional(f"slow-{topic}")
    for end in (quick.commit_transaction, quick.abort_transaction):
        quick.begin_transaction()
        quick.send(topic, b"<b>bold</b>", key=b"one")
        quick.flush()
        end()
    slow.begin_transaction()
    slow.send(topic, b"late")
    slow.flush()
    quick.begin_transaction()
    quick.send(topic, b"behind")
    quick.commit_transaction()
    return topic, slow


def test_every_page_is_there_as_html_and_as_json(browser: Browser, held: tuple[str, Producer], admin: Admin) -> None:
    topic, _ = held
    group = f"group of/{topic}"
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    wait_until(lambda: group in [one["group"] for one in browser.data(f"/groups?q={topic}")["rows"]])
    quoted = group.replace(" ", "%20")
    paths = [
        *("/", "/topics", "/topics?internal=yes", "/transactions", "/hanging", "/groups", "/brokers", "/brokers/1"),
        *(f"/topics/{topic}", f"/topics/{topic}/timeline", f"/topics/{topic}/timeline?x=time"),
        *(f"/topics/{topic}/producers", f"/topics/{topic}/messages?isolation=read_uncommitted"),
        *(f"/transactions/slow-{topic}", f"/groups/{quoted}"),
        *("/topics/__transaction_state/messages?start=earliest", "/topics/__consumer_offsets/messages?start=earliest"),
        *(f"/changes/fence?id=slow-{topic}", f"/changes/reset?group={quoted}&topic={topic}&to=latest"),
    ]
    for path in paths:
        html = browser.get(path, Accept="text/html,*/*;q=0.8")
        assert (html.status, html.headers["content-type"]) == (200, "text/html; charset=utf-8"), f"{path}: {html.text}"
        found = Structure(html.text)
        assert found.headings.count(1) == 1, path
        assert all(after <= before + 1 for before, after in zip(found.headings, found.headings[1:], strict=False)), path
        assert found.tables == found.captions, path
        assert found.heads_without_scope == 0, path
        assert found.unlabelled == [], path
        assert len(found.ids) == len(set(found.ids)), path
        joined = "&" if "?" in path else "?"
        twin = browser.get(f"{path}{joined}format=json")
        assert twin.headers["content-type"] == "application/json", path
        wait_until(partial(is_fresh, browser, f"{path}{joined}format=json"))
        assert twin.json["data"].keys() == browser.data(path).keys()


def is_fresh(browser: Browser, path: str) -> bool:
    """Not always, while polls take long on a busy machine."""
    return browser.get(path).json["status"]["stale"] is False


def test_the_timeline_names_who_holds_readers_back(browser: Browser, held: tuple[str, Producer]) -> None:
    topic, slow = held
    data = browser.data(f"/topics/{topic}/timeline")
    (lane,) = data["lanes"]
    assert [bar["outcome"] for bar in lane["bars"]] == ["committed", "aborted", "open", "committed"]
    assert lane["holder"]["transactional_id"] == f"slow-{topic}"
    assert lane["last_stable"] == lane["bars"][2]["first_offset"]
    assert lane["held_back"] == lane["high_watermark"] - lane["last_stable"]
    assert 0 < lane["holder"]["aborted_in_ms"] <= 600_000
    text = browser.get(f"/topics/{topic}/timeline").text
    assert "holds readers at offset" in text
    assert text.count('class="bar open"') == 2, "one in the legend, one in the lane"
    slow.abort_transaction()
    wait_until(lambda: browser.data(f"/topics/{topic}/timeline")["lanes"][0]["holder"] is None)
    outcomes = [bar["outcome"] for bar in browser.data(f"/topics/{topic}/timeline")["lanes"][0]["bars"]]
    assert outcomes == ["committed", "aborted", "aborted", "committed"]


def test_what_a_partition_does_not_know_of_a_producer_is_left_empty(
    browser: Browser, held: tuple[str, Producer]
) -> None:
    """Kafka says -1: of the sequence after a marker with a new epoch, of the coordinator before the first marker."""
    topic, _ = held
    rows = {one["transactional_id"]: one for one in browser.data(f"/topics/{topic}/producers")["rows"]}
    assert (rows[f"slow-{topic}"]["last_sequence"], rows[f"slow-{topic}"]["coordinator_epoch"]) == (0, None)
    assert (rows[f"quick-{topic}"]["last_sequence"], rows[f"quick-{topic}"]["coordinator_epoch"]) == (None, 0)
    assert ">-1<" not in browser.get(f"/topics/{topic}/producers").text


def test_a_timeline_with_too_many_batches_shows_the_newest_and_says_what_is_left_out(
    browser: Browser, held: tuple[str, Producer], transactional: Transactional, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, slow = held
    monkeypatch.setattr(topic_pages, "TIMELINE_BATCHES_MAX", 4)
    quick = transactional(f"other-{topic}")
    for _ in range(3):
        quick.begin_transaction()
        quick.send(topic, b"x")
        quick.commit_transaction()
    path = f"/topics/{topic}/timeline"
    wait_until(lambda: browser.data(path)["lanes"][0]["high_watermark"] == 13)
    (lane,) = browser.data(path)["lanes"]
    assert (lane["asked_start"], lane["start"], lane["end"]) == (0, 9, 13)
    assert [(bar["outcome"], bar["first_offset"]) for bar in lane["bars"]] == [
        ("open", 4),
        ("committed", 9),
        ("committed", 11),
    ]
    assert lane["bars"][0]["x"] == 0, "it began before"
    html = browser.get(path).text
    assert "offsets 0 to 8 of this range are left out" in html
    older = browser.data(f"{path}?before=9")["lanes"][0]
    assert (older["start"], older["end"]) == (5, 9)
    slow.abort_transaction()


def test_an_open_transaction_is_shown_within_moments_and_gone_when_it_ends(
    browser: Browser, held: tuple[str, Producer]
) -> None:
    topic, slow = held
    wait_until(lambda: ids_of_open(browser, topic) == [f"slow-{topic}"])
    slow.commit_transaction()
    wait_until(lambda: ids_of_open(browser, topic) == [])


def test_a_page_of_open_transactions_says_what_it_leaves_out(
    browser: Browser, held: tuple[str, Producer], transactional: Transactional, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, _ = held
    other = transactional(f"later-{topic}")
    other.begin_transaction()
    other.send(topic, b"x")
    other.flush()
    wait_until(lambda: ids_of_open(browser, topic) == [f"slow-{topic}", f"later-{topic}"])
    opened = len(browser.data("/hanging")["open"])
    assert "left out" not in browser.get("/hanging").text
    monkeypatch.setattr(transactions, "OPEN_MAX", opened - 1)
    assert len(browser.data("/hanging")["open"]) == opened - 1
    assert "1 other left out" in browser.get("/hanging").text


def test_whether_a_query_has_input_is_told_by_records_and_not_by_offsets(
    browser: Browser, topic: str, transactional: Transactional, admin: Admin
) -> None:
    producer = transactional(f"input-{topic}")
    producer.begin_transaction()
    producer.send(topic, b"x")
    producer.commit_transaction()
    group, console = f"reads-{topic}", browser.console
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 1})
    wait_until(lambda: [one["lag"] for one in browser.data(f"/groups?q={group}")["rows"]] == [1])
    assert not pipelines._has_input(console, group), "behind a marker there is nothing"
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    wait_until(lambda: pipelines._has_input(console, group))


def test_a_transactional_id_has_its_history_and_a_warning_when_it_is_shared(
    browser: Browser, topic: str, transactional: Transactional
) -> None:
    name = f"shared/{topic}"
    first = transactional(name)
    first.begin_transaction()
    first.send(topic, b"x")
    first.commit_transaction()
    data = browser.data(f"/transactions/{name}")
    assert data["shared"] is False
    assert [event["what"] for event in data["events"]][-1] in ("commit decided", "committed")
    for _ in range(3):
        transactional(name)
    wait_until(lambda: browser.data(f"/transactions/{name}")["shared"])
    data = browser.data(f"/transactions/{name}")
    assert data["strip"]["epoch_high"] > data["strip"]["epoch_low"]
    assert "Several producers use it" in browser.get(f"/transactions/{name}").text


def test_isolation_decides_what_is_shown_and_outcomes_are_named(browser: Browser, held: tuple[str, Producer]) -> None:
    topic, slow = held
    path = f"/topics/{topic}/messages?start=earliest&isolation="
    committed = browser.data(path + "read_committed")
    assert [row["value"] for row in committed["rows"]] == ["<b>bold</b>"]
    everything = browser.data(path + "read_uncommitted")["rows"]
    assert [row["outcome"] for row in everything if row["kind"] == "record"] == [
        *("committed", "aborted", "open", "committed")
    ]
    assert [row["kind"] for row in everything if row["kind"] != "record"] == [
        *("commit marker", "abort marker", "commit marker")
    ]
    slow.commit_transaction()
    wait_until(lambda: len(browser.data(path + "read_committed")["rows"]) == 3)


def test_contents_of_records_are_text_and_never_html(browser: Browser, topic: str, admin: Admin,
                                                     shared_broker: BrokerProcess) -> None:  # fmt: skip
    evil = b"</code><script>alert(1)</script>"
    with Producer({"bootstrap.servers": shared_broker.bootstrap_servers}) as producer:
        producer.send(topic, evil, key=b"\xff\xfe", headers=[("<i>", b'"&')])
    answer = browser.get(f"/topics/{topic}/messages?start=earliest")
    assert "<script>alert" not in answer.text
    assert "&lt;script&gt;alert(1)" in answer.text
    assert "<i>" not in answer.text
    (row,) = browser.data(f"/topics/{topic}/messages?start=earliest")["rows"]
    assert row["value"].encode() == evil
    assert "key_base64" in row
    mirrored = browser.get("/topics?q=%3Cscript%3Ealert(1)%3C/script%3E").text
    assert "<script>alert" not in mirrored


def test_a_search_finds_by_field_and_goes_on_where_it_stopped(
    browser: Browser, topic: str, shared_broker: BrokerProcess
) -> None:
    with Producer({"bootstrap.servers": shared_broker.bootstrap_servers}) as producer:
        for number in range(30):
            producer.send(topic, f"value {number % 3}".encode(), key=f"key {number}".encode())
    path = f"/topics/{topic}/messages?start=earliest&limit=4&q=value+2"
    first = browser.data(path)
    assert [row["offset"] for row in first["rows"]] == [2, 5, 8, 11]
    assert first["stopped_by"] == "the limit of 4 rows"
    second = browser.data(path.replace("earliest", str(first["next"])))
    assert [row["offset"] for row in second["rows"]] == [14, 17, 20, 23]
    assert browser.data(path.replace("value+2", "+2"))["rows"][0]["offset"] == 2
    assert browser.data(path.replace("value+2", "+value"))["rows"] == [], "spaces are searched for as well"
    assert browser.data(path + "&field=key")["rows"] == []
    assert browser.data(path + "&field=key")["at_end"] is True
    assert [row["offset"] for row in browser.data(f"/topics/{topic}/messages?limit=3")["rows"]] == [27, 28, 29]


def test_internal_topics_are_decoded(browser: Browser, held: tuple[str, Producer]) -> None:
    topic, _ = held
    found = [
        row["decoded"]["key"]["data"]["transactionalId"]
        for partition in (0, 1)
        for row in browser.data(f"/topics/__transaction_state/messages?start=earliest&limit=500&partition={partition}")[
            "rows"
        ]
        if row["kind"] == "record"
    ]
    assert f"slow-{topic}" in found


def test_a_group_behind_a_marker_is_caught_up(
    browser: Browser, topic: str, transactional: Transactional, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = transactional(f"marker-{topic}")
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for _ in range(3):
            producer.send(topic, b"x")
        producer.flush()
        end()
    group = f"group-{topic}"
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 1})
    wait_until(lambda: browser.get(f"/groups/{group}").status == 200)
    (row,) = browser.data(f"/groups/{group}")["offsets"]
    assert (row["lag"], row["visible_lag"], row["visible_is_exact"]) == (7, 2, True)
    assert row["time_lag_ms"] >= 0
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 3})
    wait_until(lambda: browser.data(f"/groups/{group}")["offsets"][0]["visible_lag"] == 0)
    data = browser.data(f"/groups/{group}")
    assert (data["offsets"][0]["lag"], data["to_read"], data["to_read_is_exact"]) == (5, 0, True)
    html = browser.get(f"/groups/{group}").text
    assert "<dt>Catches up in</dt><dd>caught up</dd>" in html
    assert "caught up, 5 offsets of markers and aborted records" in html
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 7})
    wait_until(lambda: "caught up, 1 marker<" in browser.get(f"/groups/{group}").text)
    wait_until(lambda: listed(browser, group)["lag"] == 1)
    assert listed(browser, group)["to_read"] == 0
    assert ">caught up<" in browser.get(f"/groups?q={group}").text
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 1})
    wait_until(lambda: listed(browser, group)["to_read"] == 2)
    monkeypatch.setattr(groups, "LISTED_OFFSETS_MAX", 1)
    assert listed(browser, group)["to_read"] is None
    assert ">at most 7<" in browser.get(f"/groups?q={group}").text


def listed(browser: Browser, group: str) -> Any:
    (row,) = browser.data(f"/groups?q={group}")["rows"]
    return row


def test_a_pipeline_shows_attempts_with_their_batches(
    browser: Browser, topic: str, transactional: Transactional, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, group, writer = TopicPartition(topic, 0), f"sink/{topic}", f"writer-{topic}"
    producer = transactional(writer)
    for batch, is_committed in ((0, False), (0, True)):
        producer.begin_transaction()
        producer.send(topic, b"row")
        producer.flush()
        note = Note("query", batch, writer=writer).to_text()
        producer.send_offsets_to_transaction({place: OffsetAndMetadata(5, metadata=note)}, group)
        (producer.commit_transaction if is_committed else producer.abort_transaction)()
    wait_until(lambda: browser.get(f"/pipelines/{group}").status == 200)
    assert group in [one["group"] for one in browser.data("/pipelines")["rows"]]
    wait_until(lambda: browser.data(f"/pipelines/{group}")["committed"] == 1)
    data = browser.data(f"/pipelines/{group}")
    assert [(one["batch"], one["outcome"]) for one in data["attempts"]] == [(0, "committed"), (0, "aborted")]
    wait_until(lambda: [one["rows"] for one in browser.data(f"/pipelines/{group}")["attempts"]] == [1, 1])
    data = browser.data(f"/pipelines/{group}")
    assert [one["written"] for one in data["attempts"]] == [
        [{"topic": topic, "partition": 0, "first": first, "last": first}] for first in (2, 0)
    ]
    link = f'href="/topics/{topic}/messages?partition=0&amp;start=2&amp;isolation=read_uncommitted">{topic}-0 at 2</a>'
    assert link in browser.get(f"/pipelines/{group}").text
    assert data["state"] == "waiting"
    transactional(writer)
    wait_until(lambda: browser.data(f"/pipelines/{group}")["state"] == "waiting")
    producer = transactional(writer)
    producer.begin_transaction()
    producer.send(topic, b"row")
    producer.flush()
    wait_until(lambda: browser.data(f"/pipelines/{group}")["state"] == "in a batch")
    transactional(writer)
    wait_until(lambda: browser.data(f"/pipelines/{group}")["state"] == "fenced by another driver")
    monkeypatch.setattr(pipelines, "_has_input", lambda *_: True)
    monkeypatch.setattr(pipeline_states, "STOPPED_AFTER_MS", 0)
    wait_until(lambda: browser.data(f"/pipelines/{group}")["state"] == "stopped")
    for path in ("/pipelines", f"/pipelines/{group}"):
        assert Structure(browser.get(path).text).heads_without_scope == 0
    assert browser.get("/pipelines/no-such-group").status == 404


def test_a_pipeline_that_names_no_transactional_id_is_not_said_to_commit_output_with_input(
    browser: Browser, topic: str, transactional: Transactional
) -> None:
    """The demo's query that writes at most once is one."""
    producer, group = transactional(f"other-{topic}"), f"plain-{topic}"
    producer.begin_transaction()
    noted = OffsetAndMetadata(5, metadata=Note("query", 0).to_text())
    producer.send_offsets_to_transaction({TopicPartition(topic, 0): noted}, group)
    producer.commit_transaction()
    wait_until(lambda: browser.get(f"/pipelines/{group}").status == 200)
    text = browser.get(f"/pipelines/{group}").text
    assert "Its notes name no transactional id" in text
    assert "committed together" not in text
    assert "compaction" not in text


def test_a_page_of_messages_follows_the_end_until_it_is_paused(
    browser: Browser, topic: str, shared_broker: BrokerProcess
) -> None:
    path = f"/topics/{topic}/messages"
    with Producer({"bootstrap.servers": shared_broker.bootstrap_servers}) as producer:
        producer.send(topic, b"first")
        producer.flush()
        following = browser.get(path).text
        assert 'data-live="yes"' in following
        paused = re.search(r'href="([^"]+)">Pause', following)
        assert paused is not None
        producer.send(topic, b"second")
        producer.flush()
    assert len(browser.data(path)["rows"]) == 2
    stopped = browser.get(path + paused[1].replace("&amp;", "&")).text
    assert 'data-live="no"' in stopped
    assert "Follow the end" in stopped


def test_lists_are_filtered_and_paged(browser: Browser, admin: Admin) -> None:
    admin.create_topics([f"many-{number:03d}" for number in range(120)])
    wait_until(lambda: browser.data("/topics?q=many-")["place"]["rows"] == 120)
    assert len(browser.data("/topics?q=many-")["rows"]) == 100
    second = browser.data("/topics?q=many-&page=2")
    assert [second["rows"][0]["topic"], len(second["rows"])] == ["many-100", 20]
    assert browser.data("/topics?q=many-&page=9999")["place"]["page"] == 2
    assert 'rel="next"' in browser.get("/topics?q=many-").text
    assert "Show all" in browser.get("/topics?q=no-such-name").text


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/nowhere", 404, "no page"),
        ("/topics/missing", 404, "There is no topic"),
        ("/groups/missing", 404, "There is no group"),
        ("/transactions/missing", 404, "No coordinator knows"),
        ("/transactions/", 404, "No coordinator knows"),
        ("/groups/", 404, "There is no group"),
        ("/pipelines/", 404, "There is no"),
        ("/brokers/77", 404, "no broker 77"),
        ("/topics?page=x", 400, "page is a number"),
        ("/topics?page=0", 400, "page is a number from 1"),
        ("/topics?q=" + "a" * 2_000, 400, "longer than"),
        ("/transactions?state=Nonsense", 400, "state is one of"),
        ("/topics/{topic}/messages?partition=5", 400, "has partitions 0 to 0"),
        ("/topics/{topic}/messages?start=someday", 400, "is not a time"),
        ("/topics/{topic}/messages?start=9223372036854775808", 400, "no time since 1970 that a cluster knows"),
        ("/topics/{topic}/messages?start=-99999999999999999999", 400, "no number of offsets that a cluster knows"),
        ("/topics/{topic}/messages?start=1969-12-31", 400, "no time since 1970"),
        ("/topics/{topic}/messages/0/99999999999999999999", 404, "has offsets 0 to 0"),
        ("/topics/{topic}/messages/0/" + "9" * 5_000, 404, "no page"),
        ("/brokers/" + "9" * 5_000, 404, "no page"),
        ("/topics/{topic}/messages?limit=501", 400, "limit is a number"),
        ("/topics/{topic}/messages?isolation=chaos", 400, "isolation is one of"),
        ("/topics/{topic}/timeline?x=size", 400, "x is one of"),
        ("/changes/fence", 400, "id is missing"),
        ("/static/../settings.py", 404, ""),
    ],
)
def test_what_cannot_be_shown_has_a_page_that_says_why(
    browser: Browser, topic: str, path: str, status: int, words: str
) -> None:
    path = path.replace("{topic}", topic)
    html = browser.get(path)
    assert html.status == status
    assert words in html.text
    assert browser.get(path, Accept="application/json").status == status
    if words:
        Structure(html.text)


def test_a_cluster_that_is_not_there_is_said_so_on_every_page(free_port: int) -> None:
    with serving(f"127.0.0.1:{free_port}", timeout_ms=5_000) as browser:
        for path in ("/", "/topics", "/groups"):
            answer = browser.get(path)
            assert answer.status == 503
            assert "The cluster does not answer" in answer.text
        assert browser.get("/?format=json").json["status"]["failed_since_ms"] is not None


@pytest.fixture
def free_port() -> int:
    return free_ports(1)[0]


def test_a_broker_has_roles_and_listeners_as_they_are_configured(browser: Browser) -> None:
    data = browser.data("/brokers/1")
    assert (data["roles"], data["listeners"]) == (["broker", "controller"], ["127.0.0.1:0"])
    assert "broker, controller" in browser.get("/brokers/1").text


def test_sizes_on_disk_are_asked_for_at_once_only_in_small_clusters(
    browser: Browser, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert browser.data("/brokers")["rows"][0]["bytes"] is not None
    assert browser.data("/")["figures"]["stored_bytes"] is not None
    monkeypatch.setattr(brokers, "DISKS_PARTITIONS_MAX", 0)
    assert browser.data("/brokers")["rows"][0]["bytes"] is None
    assert browser.data("/")["figures"]["stored_bytes"] is None
    wait_until(lambda: browser.data("/brokers/1")["directories"] is not None)
    assert len(browser.data("/brokers/1")["directories"]) == 1


def test_the_page_of_a_broker_does_not_wait_until_it_has_counted_what_it_stores(
    shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer, count = threading.Event(), brokers.log_directories
    monkeypatch.setattr(brokers, "DISKS_PARTITIONS_MAX", 0)
    monkeypatch.setattr(brokers, "log_directories", lambda admin: may_answer.wait(60) and count(admin))
    with serving(shared_broker.bootstrap_servers) as browser:
        try:
            wait_until(lambda: browser.get("/brokers").status == 200)
            page = browser.get("/brokers/1")
            assert (page.status, "The brokers count what they store" in page.text) == (200, True)
        finally:
            may_answer.set()
        wait_until(lambda: browser.data("/brokers/1")["directories"] is not None)
        assert "The brokers count" not in browser.get("/brokers/1").text
