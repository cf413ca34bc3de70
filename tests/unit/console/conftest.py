"""A broker, a console on it that is really served on a socket, and a browser's requests."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from oncelog.client import Admin, ClientConfig
from oncelog.console.page import Console
from oncelog.console.server import bind, make_server
from oncelog.console.settings import ConsoleSettings
from oncelog.console.visits import OneVisit, Visits, decoder_of
from oncelog.console.watch import ClusterWatch
from oncelog.monitoring.snapshot import Poller
from oncelog.testing import BrokerProcess, broker
from tests.waiting import wait_until

BROKER_SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "oncelog.cluster.action.enable": True,
}
TOKEN = "token-" + secrets.token_hex(4)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Browser:
    """Requests to a console, as a browser on this machine makes them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.host = f"127.0.0.1:{port}"
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        """What its pages use, where nobody logs in."""
        assert self._console is not None
        return self._console

    def request(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: str = "") -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body or None, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, {name.replace("_", "-"): value for name, value in headers.items()})

    def data(self, path: str) -> Any:
        """The contents of a page."""
        answer = self.get(path, Accept="application/json")
        assert answer.status == 200, answer.text
        return answer.json["data"]

    def post(self, path: str, form: Mapping[str, Any], **headers: str) -> Answer:
        sent = {"Origin": f"http://{self.host}", "Content-Type": "application/x-www-form-urlencoded"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request("POST", path, sent, urlencode(form))

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str] | None = None) -> Iterator[HTTPResponse]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("GET", path, headers=dict(headers or {}))
            yield connection.getresponse()
        finally:
            connection.close()


@contextmanager
def serving(
    servers: str, audit_log: Path | None = None, *, timeout_ms: int = 30_000, **settings: Any
) -> Iterator[Browser]:
    """`timeout_ms` is how long pages wait for a cluster that does not answer."""
    client = ClientConfig(bootstrap_servers=servers, default_api_timeout_ms=timeout_ms)
    chosen = ConsoleSettings(client, ("-b", servers), audit_log, **{"poll_interval_ms": 50, **settings})
    with Admin(client) as pages, Admin(client) as polls:
        watch = ClusterWatch(Poller(polls), chosen.poll_interval_ms)
        console = Console(chosen, pages, watch, TOKEN, schemas=decoder_of(chosen))
        with served(OneVisit(console), chosen) as found:
            found._console = console
            # Known as there or as not there: a first poll takes its time on a busy machine.
            wait_until(lambda: found.get("/?format=json").json["status"]["number"] > 0)
            yield found


@contextmanager
def served(visits: Visits, settings: ConsoleSettings) -> Iterator[Browser]:
    with bind("127.0.0.1", 0) as listener:
        server = make_server(visits, settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive())
            yield Browser(listener.getsockname()[1])
        finally:
            server.stop()
            thread.join(120)
            assert not thread.is_alive(), "the console did not stop"


@pytest.fixture(scope="session")
def shared_broker() -> Iterator[BrokerProcess]:
    with broker(BROKER_SETTINGS) as process:
        yield process


@pytest.fixture
def servers(shared_broker: BrokerProcess) -> str:
    return shared_broker.bootstrap_servers


@pytest.fixture(scope="session")
def browser(shared_broker: BrokerProcess) -> Iterator[Browser]:
    """Of a console that only shows things."""
    with serving(shared_broker.bootstrap_servers) as found:
        yield found


@pytest.fixture
def audit_log(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def changing(shared_broker: BrokerProcess, audit_log: Path) -> Iterator[Browser]:
    """Of a console that may change things."""
    with serving(shared_broker.bootstrap_servers, audit_log) as found:
        yield found


@pytest.fixture
def topic(admin: Admin, name: str, browser: Browser) -> str:
    """A new topic of one partition, which the console has seen."""
    admin.create_topics([name])
    wait_until(lambda: browser.get(f"/topics/{name}").status == 200)
    return name
