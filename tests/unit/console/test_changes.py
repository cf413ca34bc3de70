"""What the console changes: only when it may, only what was shown, only with a confirmation, and never unlogged."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from oncelog.client import Admin, ClientConfig, Consumer, NewTopic, Producer, ProducerFenced, TopicPartition
from oncelog.client.admin import ProducerDescription, TransactionDescription
from oncelog.console import changes
from oncelog.console.changes import parse_offsets
from oncelog.console.page import BadInput, Refused
from oncelog.core.errors import ErrorCode
from oncelog.monitoring.open_transactions import OpenTransaction
from oncelog.protocol.api_keys import ApiKey
from oncelog.testing import BrokerProcess
from tests.unit.cli.test_transactions import leave_hanging
from tests.unit.client.chaos import Accident, Chaos, Kind
from tests.unit.console.conftest import BROKER_SETTINGS, TOKEN, Browser, serving
from tests.waiting import wait_until

Transactional = Callable[[str], Producer]
LOST = Accident(Kind.LOSE_ANSWER)
REFUSED = Accident(Kind.REFUSE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def logged(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def known(browser: Browser, topic: str) -> None:
    wait_until(lambda: browser.get(f"/topics/{topic}").status == 200)


@pytest.fixture
def opened(topic: str, transactional: Transactional) -> tuple[str, Producer]:
    name = f"open-{topic}"
    producer = transactional(name)
    producer.begin_transaction()
    producer.send(topic, b"x")
    producer.flush()
    return name, producer


def fence_form(browser: Browser, name: str) -> dict[str, Any]:
    """As the dialog has it, with the confirmation typed."""
    data = browser.data(f"/changes/fence?id={name}")
    return {**data["fields"], "token": TOKEN, "confirm": name}


def test_fencing_aborts_the_transaction_and_is_logged_before_and_after(
    changing: Browser, opened: tuple[str, Producer], audit_log: Path
) -> None:
    name, producer = opened
    answer = changing.post("/changes/fence", fence_form(changing, name))
    assert (answer.status, answer.headers["location"]) == (303, f"/transactions/{name}")
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()
    assert [(line["what"], line["outcome"]) for line in logged(audit_log)] == [("fence", "begun"), ("fence", "done")]
    assert logged(audit_log)[0]["transactional_id"] == name
    assert "no open transaction" in changing.get(f"/changes/fence?id={name}").text


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"confirm": "something else"}, 400),
        ({"confirm": ""}, 400),
        ({"token": "guessed"}, 403),
        ({"token": ""}, 403),
        ({"producer_epoch": 77}, 409),
        ({"producer_id": 123456}, 409),
        ({"start_ms": 1}, 409),
        ({"start_ms": ""}, 409),
        ({"id": "no-such-id", "confirm": "no-such-id"}, 404),
    ],
)
def test_a_form_that_is_not_exactly_right_changes_nothing(
    changing: Browser, opened: tuple[str, Producer], audit_log: Path, changed: dict[str, Any], status: int
) -> None:
    name, producer = opened
    assert changing.post("/changes/fence", fence_form(changing, name) | changed).status == status
    assert logged(audit_log) == []
    producer.commit_transaction()


def test_a_transaction_that_the_page_did_not_show_is_not_fenced(
    changing: Browser, topic: str, shared_broker: BrokerProcess, audit_log: Path
) -> None:
    """Clients of others keep producer and epoch from one transaction to the next."""
    from confluent_kafka import Producer as OtherProducer

    name = f"next-{topic}"
    producer = OtherProducer({"bootstrap.servers": shared_broker.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(30)
    forms = []
    for value in (b"first", b"second"):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        forms.append(fence_form(changing, name))
        if value == b"first":
            producer.commit_transaction(30)
    first, second = forms
    assert (first["producer_id"], first["producer_epoch"]) == (second["producer_id"], second["producer_epoch"])
    answer = changing.post("/changes/fence", first)
    assert (answer.status, "has begun another one" in answer.text) == (409, True)
    assert logged(audit_log) == []
    producer.commit_transaction(30)


def test_a_name_with_spaces_at_its_ends_is_another_name(changing: Browser, topic: str, admin: Admin) -> None:
    known(changing, topic)
    for group in (f"g-{topic}", f"g-{topic} "):
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    wanted = urlencode({"group": f"g-{topic} ", "topic": topic, "to": " latest "})
    data = changing.data(f"/changes/reset?{wanted}")
    assert (data["group"], data["to"], data["fields"]["group"]) == (f"g-{topic} ", "latest", f"g-{topic} ")
    assert "with the spaces at its ends" in changing.get(f"/changes/reset?{wanted}").text
    form = {**data["fields"], "token": TOKEN}
    assert changing.post("/changes/reset", form | {"confirm": f"g-{topic}"}).status == 400
    answer = changing.post("/changes/reset", form | {"confirm": f"g-{topic} "})
    assert (answer.status, answer.headers["location"]) == (303, f"/groups/g-{topic}%20")


def test_another_site_cannot_send_the_form(changing: Browser, opened: tuple[str, Producer], audit_log: Path) -> None:
    name, producer = opened
    form = fence_form(changing, name)
    assert changing.post("/changes/fence", form, Origin="http://evil.example").status == 403
    assert changing.post("/changes/fence", form, Sec_Fetch_Site="cross-site").status == 403
    assert changing.post("/changes/fence", form, Host="evil.example").status == 403
    assert changing.request("POST", "/changes/fence").status == 403
    assert changing.post("/changes/fence", form, Content_Type="text/plain").status == 400
    assert changing.post("/changes/fence", form | {"extra": "x" * 300_000}).status == 400
    assert logged(audit_log) == []
    producer.commit_transaction()


def test_a_console_that_only_shows_things_changes_nothing(browser: Browser, opened: tuple[str, Producer]) -> None:
    name, producer = opened
    dialog = browser.get(f"/changes/fence?id={name}").text
    assert 'method="post"' not in dialog
    assert f"oncelog txn fence {name}" in dialog
    answer = browser.post("/changes/fence", fence_form(browser, name))
    assert answer.status == 403
    assert "--allow-changes" in answer.text
    producer.commit_transaction()


@pytest.mark.parametrize("later", [LOST, REFUSED], ids=["all are lost", "then it is refused"])
def test_a_change_whose_answer_is_lost_is_not_called_failed(
    shared_broker: BrokerProcess, opened: tuple[str, Producer], tmp_path: Path, later: Accident
) -> None:
    name, producer = opened
    accidents = itertools.chain([LOST], itertools.repeat(later))
    log = tmp_path / "audit"
    with (
        Chaos(shared_broker.bootstrap_servers) as chaos,
        serving(chaos.bootstrap_servers, log, timeout_ms=5_000) as browser,
    ):
        form = fence_form(browser, name)
        chaos.accident = lambda key, request: next(accidents) if key is ApiKey.INIT_PRODUCER_ID else None
        answer = browser.post("/changes/fence", form)
    assert answer.status == 504
    assert "It may have been done" in answer.text
    assert "goes on trying" not in answer.text
    assert [line["outcome"] for line in logged(log)] == ["begun", "unknown"]
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()


def test_nothing_is_changed_if_it_cannot_be_logged(
    shared_broker: BrokerProcess, opened: tuple[str, Producer], tmp_path: Path
) -> None:
    name, producer = opened
    with serving(shared_broker.bootstrap_servers, tmp_path / "missing" / "audit.jsonl") as browser:
        answer = browser.post("/changes/fence", fence_form(browser, name))
        assert answer.status == 409
        assert "audit log cannot be written" in answer.text
    producer.commit_transaction()


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_a_transaction_that_is_decided_is_not_fenced(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    place = TopicPartition("orders", 1)
    found = TransactionDescription("decided", state, 1, 0, 60_000, 500, [place], "h:1")
    monkeypatch.setattr(changes, "describe_known", lambda *_: {"decided": found})
    with pytest.raises(Refused, match="has decided") as refused:
        changes._fenceable(type("Console", (), {"admin": None})(), "decided")
    assert "orders-1" in refused.value.advice


def test_an_abort_of_a_transaction_that_its_coordinator_knows_is_refused(
    changing: Browser, opened: tuple[str, Producer], topic: str
) -> None:
    _, producer = opened
    known(changing, topic)
    answer = changing.get(f"/changes/abort?topic={topic}&partition=0&start_offset=0")
    assert answer.status == 409
    assert "may still commit it" in answer.text
    form = {"topic": topic, "partition": 0, "start_offset": 0, "producer_id": 0, "producer_epoch": 0}
    assert changing.post("/changes/abort", {**form, "token": TOKEN, "confirm": f"{topic}:0"}).status == 409
    producer.commit_transaction()


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_an_abort_of_a_transaction_that_is_decided_is_refused(
    changing: Browser, topic: str, audit_log: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """However old it is, and although its coordinator is not writing any more."""
    known(changing, topic)
    place = TopicPartition(topic, 0)
    described = TransactionDescription("decided", state, 1, 0, 60_000, 500, [place], "h:1")
    found = OpenTransaction(place, ProducerDescription(1, 0, 0, 500, 0, 4), "decided", described, "")
    monkeypatch.setattr(changes, "open_transactions", lambda *_: [found])
    answer = changing.get(f"/changes/abort?topic={topic}&partition=0&start_offset=4")
    assert (answer.status, "has decided how the transaction ends" in answer.text) == (409, True)
    form = {"topic": topic, "partition": 0, "start_offset": 4, "producer_id": 1, "producer_epoch": 0}
    assert changing.post("/changes/abort", {**form, "token": TOKEN, "confirm": f"{topic}:0"}).status == 409
    assert logged(audit_log) == []


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[BrokerProcess, TopicPartition]]:
    """A broker with a transaction that no coordinator knows, from offset 1 on."""
    place = TopicPartition("hung", 0)
    process = BrokerProcess(tmp_path / "data", BROKER_SETTINGS)
    try:
        process.start()
        leave_hanging(process, place)
        process.start()
        yield process, place
    finally:
        process.stop()


def test_a_hanging_transaction_is_aborted_when_it_is_old_enough(
    hanging: tuple[BrokerProcess, TopicPartition], audit_log: Path
) -> None:
    process, place = hanging
    dialog = "/changes/abort?topic=hung&partition=0&start_offset=1"
    with serving(process.bootstrap_servers, audit_log) as browser:
        (one,) = browser.data("/hanging")["hanging"]
        assert (one["producer_id"], one["start_offset"], one["sure"]) == (7777, 1, False)
        assert "hangs" not in browser.data("/")["sentences"][0]["text"]
        early = browser.get(dialog)
        assert early.status == 409
        assert "too early" in early.text
    with serving(process.bootstrap_servers, audit_log, hanging_after_ms=0) as browser:
        assert "hangs on hung-0" in browser.data("/")["sentences"][0]["text"]
        assert browser.get(dialog.replace("offset=1", "offset=0")).status == 409
        data = browser.data(dialog)
        assert data["command"].startswith("oncelog txn abort hung:0 --start-offset 1")
        form = {**data["fields"], "token": TOKEN, "confirm": data["confirm"]}
        assert browser.post("/changes/abort", form | {"producer_id": 1}).status == 409
        assert logged(audit_log) == []
        assert browser.post("/changes/abort", form).status == 303
        wait_until(lambda: browser.data("/hanging")["hanging"] == [])
        assert browser.post("/changes/abort", form).status == 409, "it has ended"
    assert [line["outcome"] for line in logged(audit_log)] == ["begun", "done"]
    with Admin(ClientConfig(bootstrap_servers=process.bootstrap_servers)) as admin:
        assert all(one.transaction_start_offset < 0 for one in admin.describe_producers([place])[place])


def test_a_reset_sets_what_was_shown(
    changing: Browser, topic: str, admin: Admin, shared_broker: BrokerProcess, audit_log: Path
) -> None:
    place, group = TopicPartition(topic, 0), f"group/{topic}"
    with Producer({"bootstrap.servers": shared_broker.bootstrap_servers}) as producer:
        for _ in range(10):
            producer.send(topic, b"x")
    admin.alter_group_offsets(group, {place: 4})
    known(changing, topic)
    data = changing.data(f"/changes/reset?group={group}&topic={topic}&to=99")
    assert [(one["before"], one["after"], one["wanted"]) for one in data["plan"]] == [(4, 10, 99)]
    form = {**data["fields"], "token": TOKEN, "confirm": group}
    assert changing.post("/changes/reset", form | {"confirm": "other"}).status == 400
    admin.alter_group_offsets(group, {place: 5})
    assert changing.post("/changes/reset", form).status == 409, "the group has moved meanwhile"
    assert logged(audit_log) == []
    admin.alter_group_offsets(group, {place: 4})
    assert changing.post("/changes/reset", form).headers["location"] == f"/groups/group%2F{topic}"
    assert admin.group_offsets(group)[place].offset == 10
    assert [line["outcome"] for line in logged(audit_log)] == ["begun", "done"]
    assert logged(audit_log)[0]["before"] == {str(place): 4}


def test_a_group_with_members_is_not_reset(
    changing: Browser, topic: str, admin: Admin, shared_broker: BrokerProcess, audit_log: Path
) -> None:
    group = f"busy-{topic}"
    known(changing, topic)
    settings = {"bootstrap.servers": shared_broker.bootstrap_servers, "group.id": group}
    with Consumer(settings) as consumer:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(50) or consumer.assignment())
        answer = changing.get(f"/changes/reset?group={group}&topic={topic}&to=earliest")
        assert answer.status == 409
        assert "has 1 member" in answer.text
        form = {"group": group, "topic": topic, "plan": "0::0", "token": TOKEN, "confirm": group}
        assert changing.post("/changes/reset", form).status == 409
    assert logged(audit_log) == []


def test_a_reset_needs_a_target_that_is_one(changing: Browser, topic: str, admin: Admin) -> None:
    known(changing, topic)
    huge = ("9" * 20, str(1 << 63), "-" + "9" * 30, "%2B" + "9" * 30, "-99999999999d", "1969-12-31")
    for to in ("someday", "%2B3", *huge):
        answer = changing.get(f"/changes/reset?group=new-{topic}&topic={topic}&to={to}")
        assert answer.status == 400, to


@pytest.mark.parametrize(
    "text", ["", "0", "0:1", "a:1:2", "0:1:2:3", "0::", "0::-1", "-1::0", f"0::{1 << 63}", f"{1 << 31}::0"]
)
def test_a_plan_that_no_page_made_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        changes.parse_plan(text, "orders")


def test_a_plan_comes_back_as_it_was() -> None:
    assert changes.parse_plan("0:4:10,1::0", "t") == {
        TopicPartition("t", 0): (4, 10),
        TopicPartition("t", 1): (None, 0),
    }


def test_offsets_of_a_file_are_previewed_and_set(changing: Browser, admin: Admin) -> None:
    topic, group = "pasted", "pasted-group"
    admin.create_topics([NewTopic(topic, 60)])
    known(changing, topic)
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    text = "".join(f'"{topic}",{number},0\n' for number in range(60))
    data = changing.data(f"/changes/reset?{urlencode({'group': group, 'topic': topic, 'offsets': text})}")
    assert [(one["partition"], one["before"], one["after"]) for one in data["plan"][:2]] == [(0, 0, 0), (1, None, 0)]
    assert len(data["command"].splitlines()) == 60
    form = {**data["fields"], "token": TOKEN, "confirm": group}
    assert changing.post("/changes/reset", form | {"plan": form["plan"] + " " * 1_000}).status == 303
    assert len(admin.group_offsets(group)) == 60


@pytest.mark.parametrize(
    "lines",
    ["x", "0", "0,x", "-1,5", "0,-5", "0,1\n0,2", "other,0,5", "1,2,3,4", ",", f"0,{1 << 63}", f"{1 << 31},0"],
)
def test_lines_that_are_no_offsets_of_the_topic_are_refused(lines: str) -> None:
    with pytest.raises(BadInput):
        parse_offsets(lines, "orders")


def test_offsets_of_a_file() -> None:
    assert parse_offsets("0,5\r\n orders , 1 , 7 \n\n", "orders") == {
        TopicPartition("orders", 0): 5,
        TopicPartition("orders", 1): 7,
    }
