"""A console whose visitors log in as users of the cluster, on a broker with SASL and ACLs."""

from __future__ import annotations

import json
import re
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import pytest

from oncelog.client import Admin, ClientConfig, OffsetAndMetadata, Producer, TopicPartition
from oncelog.client.admin import Acl, Operation, Pattern, Permission, Resource, ScramMechanism, ScramUpsertion
from oncelog.console import visits
from oncelog.console.settings import ConsoleSettings, parse_listen
from oncelog.console.visits import COOKIE, IDLE_S, SESSION_S, LogInFailed, Sessions
from oncelog.core.broker_config import STANDARD_AUTHORIZER
from oncelog.core.sink_note import Note
from oncelog.testing.broker import BrokerProcess
from tests.unit.console.conftest import Answer, Browser, served
from tests.waiting import wait_until

TLS = Path(__file__).parents[2] / "data" / "tls"
USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_admin="root";'
SETTINGS = {
    "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.in.plain.sasl.jaas.config": USERS,
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


def client_of(servers: str, user: str, password: str, mechanism: str) -> ClientConfig:
    return ClientConfig(
        bootstrap_servers=servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_username=user,
        sasl_password=password,
        default_api_timeout_ms=20_000,
    )


@contextmanager
def secured_broker(folder: Path) -> Iterator[str]:
    """Sam may see the topic tea, and the topic gin is there too."""
    process = BrokerProcess(folder / "data", SETTINGS, arguments=["--listen", "IN://127.0.0.1:0"])
    process.start()
    with Admin(client_of(process.bootstrap_servers, "admin", "root", "PLAIN")) as admin:
        admin.create_topics(["tea", "gin"])
        admin.alter_user_scram_credentials([ScramUpsertion("sam", ScramMechanism.SHA_256, "pencil")])
        admin.alter_user_scram_credentials([ScramUpsertion("boss", ScramMechanism.SHA_256, "ink")])
        admin.create_acls(
            [
                Acl(Resource.TOPIC, "tea", Pattern.LITERAL, "User:sam", "*", Operation.READ, Permission.ALLOW),
                Acl(Resource.TOPIC, "*", Pattern.LITERAL, "User:boss", "*", Operation.ALL, Permission.ALLOW),
                *(
                    Acl(Resource.TRANSACTIONAL_ID, "till", Pattern.LITERAL, user, "*", allowed, Permission.ALLOW)
                    for user, allowed in (("User:boss", Operation.ALL), ("User:sam", Operation.DESCRIBE))
                ),
            ]
        )
    try:
        yield process.bootstrap_servers
    finally:
        process.stop()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as found:
        yield found


@contextmanager
def selling(servers: str, *, is_over: bool = False) -> Iterator[None]:
    """A transaction of till is open on tea, or was."""
    account = {"sasl.username": "boss", "sasl.password": "ink", "sasl.mechanism": "SCRAM-SHA-256"}
    account |= {"bootstrap.servers": servers, "security.protocol": "SASL_PLAINTEXT", "transactional.id": "till"}
    with Producer(account) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("tea", b"x").result(30)
        if is_over:
            producer.commit_transaction()
        yield
        producer.close(timeout_ms=2_000)


def settings_of(servers: str, **others: Any) -> ConsoleSettings:
    client = client_of(servers, "nobody", "none", "SCRAM-SHA-256")
    return ConsoleSettings(client, poll_interval_ms=50, log_in=True, **others)


@pytest.fixture
def browser(servers: str) -> Iterator[Browser]:
    settings = settings_of(servers)
    sessions = Sessions(settings)
    try:
        with served(sessions, settings) as found:
            yield found
    finally:
        sessions.close()


def log_in(browser: Browser, user: str, password: str, where: str = "/topics") -> Answer:
    return browser.post("/log-in", {"user": user, "password": password, "next": where})


def cookie_of(answer: Answer) -> dict[str, str]:
    found = SimpleCookie(answer.headers["set-cookie"])[COOKIE]
    assert found["httponly"]
    assert found["samesite"] == "strict"
    assert found["path"] == "/"
    return {"Cookie": f"{COOKIE}={found.value}"}


def topics_of(browser: Browser, cookie: dict[str, str]) -> list[str]:
    found: list[str] = []

    def are_there() -> bool:
        answer = browser.get("/topics", Accept="application/json", **cookie)
        if answer.status == 200:
            found[:] = [row["topic"] for row in answer.json["data"]["rows"]]
        return answer.status == 200

    wait_until(are_there)
    return found


def test_without_a_session_there_is_only_the_form(browser: Browser) -> None:
    for path in ("/", "/topics/tea/messages?partition=0", "/changes/fence?id=x", "/no-such-page"):
        answer = browser.get(path)
        assert answer.status == 303, path
        assert answer.headers["location"].startswith("/log-in?next=%2F")
    assert browser.get("/topics", Accept="application/json").status == 401
    assert browser.get("/events").status == 401
    assert browser.post("/changes/fence", {"id": "x"}).status == 401
    form = browser.get("/log-in?next=%2Ftopics%22%3E")
    assert form.status == 200
    assert 'value="/topics&#34;&gt;"' in form.text
    assert browser.get("/static/console.css").status == 200


def test_a_user_sees_what_acls_allow(browser: Browser) -> None:
    answer = log_in(browser, "sam", "pencil")
    assert (answer.status, answer.headers["location"]) == (303, "/topics")
    sam, boss = cookie_of(answer), cookie_of(log_in(browser, "boss", "ink"))
    assert topics_of(browser, sam) == ["tea"]
    assert topics_of(browser, boss) == ["gin", "tea"]
    assert browser.get("/topics/gin", **sam).status == 404
    assert ">sam<" in browser.get("/topics", **sam).text
    for path in ("/", "/hanging", "/transactions", "/groups", "/brokers", "/topics/tea", "/topics/tea/timeline"):
        assert browser.get(path, **sam).status == 200, path


@pytest.fixture
def limited(servers: str) -> Iterator[None]:
    """Users with few rights, on a cluster with a group and an open transaction."""
    rights = {
        "teller": [(Resource.TOPIC, "tea", Operation.DESCRIBE)],
        "writer": [(Resource.TOPIC, "tea", Operation.WRITE)],
        "reader": [(Resource.TOPIC, "tea", Operation.READ)],
        "auditor": [(Resource.CLUSTER, "kafka-cluster", Operation.DESCRIBE)],
        "stranger": [],
        "monitor": [
            (kind, "*", Operation.DESCRIBE) for kind in (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)
        ],
    }
    with Admin(client_of(servers, "admin", "root", "PLAIN")) as admin:
        admin.alter_user_scram_credentials([ScramUpsertion(user, ScramMechanism.SHA_256, "secret") for user in rights])
        admin.create_acls(
            Acl(*right[:2], Pattern.LITERAL, f"User:{user}", "*", right[2], Permission.ALLOW)
            for user, own in rights.items()
            for right in own
        )
        with selling(servers, is_over=True):
            note = Note("query", 7, writer="till").to_text()
            admin.alter_group_offsets("drinkers", {TopicPartition("tea", 0): OffsetAndMetadata(0, metadata=note)})
    with selling(servers):
        yield


@pytest.mark.parametrize(
    ("user", "words", "unseen"),
    [
        ("teller", "Transactions are open on tea-0 too. ACLs allow you no Read there", "till"),
        ("writer", "Transactions are open on tea-0 too. ACLs allow you no Read there", "till"),
        ("reader", "ACLs hide its transactional id from you: its coordinator may end it.", "till"),
        ("auditor", "No transaction hangs, as far as ACLs let you see.", "tea"),
        ("stranger", "No transaction hangs, as far as ACLs let you see.", "drinkers"),
    ],
)
def test_a_user_with_one_right_has_all_pages_and_is_told_nothing_false(
    browser: Browser, limited: None, user: str, words: str, unseen: str
) -> None:
    cookie = cookie_of(log_in(browser, user, "secret"))
    topics_of(browser, cookie)
    for path in ("/", "/topics", "/hanging", "/transactions", "/groups", "/pipelines", "/brokers", "/brokers/1"):
        answer = browser.get(path, **cookie)
        assert (answer.status, unseen in answer.text) == (200, False), path
    page = browser.get("/hanging", **cookie).text
    assert words in page
    assert "no coordinator will end it" not in page
    assert "no transaction is open" not in browser.get("/", **cookie).text or user in ("auditor", "stranger")


def test_who_may_describe_and_not_read_sees_groups_ids_and_pipelines(browser: Browser, limited: None) -> None:
    cookie = cookie_of(log_in(browser, "monitor", "secret"))
    topics_of(browser, cookie)
    wait_until(lambda: "drinkers" in browser.get("/pipelines", **cookie).text)
    (row,) = browser.get("/groups", Accept="application/json", **cookie).json["data"]["rows"]
    assert (row["group"], row["lag"] > 0, row["to_read"]) == ("drinkers", True, None)
    group = browser.get("/groups/drinkers", **cookie)
    assert "ACLs allow you no Read of tea: records there are not counted." in group.text
    assert browser.get("/groups/drinkers", Accept="application/json", **cookie).json["data"]["to_read"] is None
    known = browser.get("/transactions/till", **cookie)
    assert (known.status, "ACLs allow you no Read of __transaction_state." in known.text) == (200, True)
    pipeline = browser.get("/pipelines/drinkers", **cookie)
    assert (pipeline.status, "ACLs allow you no Read of __transaction_state and" in pipeline.text) == (200, True)
    for path in ("/topics/tea/timeline", "/topics/tea/messages", "/topics/tea/producers"):
        assert browser.get(path, **cookie).status == 403, path


def test_who_cannot_see_the_id_of_a_transaction_cannot_abort_it_on_one_partition(
    servers: str, limited: None, tmp_path: Path
) -> None:
    settings = settings_of(servers, audit_log=tmp_path / "audit.jsonl", hanging_after_ms=0)
    sessions = Sessions(settings)
    try:
        with served(sessions, settings) as browser:
            cookie = cookie_of(log_in(browser, "reader", "secret"))
            topics_of(browser, cookie)
            (row,) = browser.get("/hanging", Accept="application/json", **cookie).json["data"]["open"]
            where = f"/changes/abort?topic=tea&partition=0&start_offset={row['start_offset']}"
            answer = browser.get(where, **cookie)
    finally:
        sessions.close()
    assert (answer.status, "ACLs hide the transactional id" in answer.text) == (409, True), answer.text


@pytest.mark.parametrize(("user", "password"), [("sam", "wrong"), ("nobody", "none"), ("admin", "root")])
def test_a_wrong_user_and_a_wrong_password_get_the_same_answer(browser: Browser, user: str, password: str) -> None:
    """The administrator is a user of PLAIN, and the console was told to use SCRAM."""
    answer = log_in(browser, user, password)
    assert answer.status == 401
    assert "no such user, or the password is another one" in answer.text
    assert "set-cookie" not in answer.headers


def test_log_out_ends_the_session(browser: Browser) -> None:
    cookie = cookie_of(log_in(browser, "sam", "pencil"))
    assert browser.get("/topics", **cookie).status in (200, 503)
    assert browser.post("/log-out", {}, **cookie).status == 303
    assert browser.get("/topics", **cookie).status == 303


@pytest.mark.parametrize("where", ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:1", ""])
def test_a_log_in_leads_to_no_other_site(browser: Browser, where: str) -> None:
    assert log_in(browser, "sam", "pencil", where).headers["location"] == "/"


def test_a_log_in_from_another_site_is_refused(browser: Browser) -> None:
    answer = browser.post("/log-in", {"user": "sam", "password": "pencil"}, Origin="http://evil.example")
    assert answer.status == 403


def test_acls_decide_what_a_user_may_change_and_the_audit_log_names_the_user(servers: str, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    settings = settings_of(servers, audit_log=log)
    sessions = Sessions(settings)
    with selling(servers), served(sessions, settings) as browser:
        found = {}
        for user, password in (("sam", "pencil"), ("boss", "ink")):
            cookie = cookie_of(log_in(browser, user, password))
            topics_of(browser, cookie)
            data = browser.get("/changes/fence?id=till", Accept="application/json", **cookie).json["data"]
            token = re.search(r'name="token" value="([^"]+)"', browser.get("/changes/fence?id=till", **cookie).text)
            assert token is not None
            form = {**data["fields"], "token": token[1], "confirm": "till"}
            found[user] = browser.post("/changes/fence", form, **cookie)
    sessions.close()
    assert (found["sam"].status, "ACLs do not allow this" in found["sam"].text) == (403, True)
    assert found["boss"].status == 303
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["client"], line["outcome"]) for line in lines] == [
        ("sam from 127.0.0.1", "begun"),
        ("sam from 127.0.0.1", "failed"),
        ("boss from 127.0.0.1", "begun"),
        ("boss from 127.0.0.1", "done"),
    ]
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in lines[1]["error"]


def test_a_session_that_is_over_is_ended_although_nobody_comes(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients are closed, and with them the password is gone."""
    now_s = [0.0]
    monkeypatch.setattr(visits, "SWEEP_S", 0.01)
    sessions = Sessions(settings_of(servers), lambda: now_s[0])
    sessions.start()
    try:
        token = sessions.log_in("sam", "pencil")
        session = sessions._sessions[token]
        now_s[0] = IDLE_S + 1.0
        wait_until(lambda: not sessions._sessions)
        assert session.visit.console.watch.is_stopping
        wait_until(lambda: is_closed(session.clients[0]))
    finally:
        sessions.stop()
        sessions.close()


def is_closed(client: Admin) -> bool:
    try:
        client.describe_cluster()
    except RuntimeError:
        return True
    return False


def test_a_session_ends_after_hours(servers: str) -> None:
    now_s = [0.0]
    sessions = Sessions(settings_of(servers), lambda: now_s[0])
    try:
        idle, busy = ({COOKIE: sessions.log_in("sam", "pencil")} for _ in range(2))
        for now_s[0] in range(0, SESSION_S + 1, IDLE_S // 2):
            assert sessions.find(busy) is not None
        assert sessions.find(idle) is None
        now_s[0] = SESSION_S + 1.0
        assert sessions.find(busy) is None
        assert sessions.find({COOKIE: sessions.log_in("sam", "pencil")}) is not None
        with pytest.raises(LogInFailed):
            sessions.log_in("sam", "other")
    finally:
        sessions.close()


def test_pages_through_tls_on_a_name_of_the_network(servers: str) -> None:
    files = {"certificate": TLS / "broker.pem", "key": TLS / "broker.pem"}
    settings = settings_of(servers, host_names=frozenset({"console.example"}), **files)
    sessions = Sessions(settings)
    context = ssl.create_default_context(cafile=TLS / "ca.pem")
    context.check_hostname = False
    try:
        with served(sessions, settings) as browser:
            url = f"https://127.0.0.1:{browser.port}/log-in"
            with urllib.request.urlopen(url, context=context, timeout=30) as answer:
                assert answer.status == 200
            named = urllib.request.Request(url, headers={"Host": "console.example"})
            with urllib.request.urlopen(named, context=context, timeout=30) as answer:
                assert re.search("<h1>Log in</h1>", answer.read().decode())
            body = b"user=sam&password=pencil&next=/"
            headers = {"Origin": f"https://127.0.0.1:{browser.port}"}
            logged_in = urllib.request.Request(url, body, headers)
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.build_opener(NoRedirect, urllib.request.HTTPSHandler(context=context)).open(logged_in)
            assert caught.value.headers["Set-Cookie"].startswith(f"__Host-{COOKIE}=")
            assert "Secure" in caught.value.headers["Set-Cookie"]
    finally:
        sessions.close()


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def test_the_network_is_listened_to_only_with_log_in_and_tls() -> None:
    assert parse_listen("0.0.0.0:8443", is_protected=True) == ("0.0.0.0", 8443)
    with pytest.raises(ValueError, match="--log-in, --certificate and --key"):
        parse_listen("0.0.0.0:8443")
