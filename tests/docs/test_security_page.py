"""docs/security.md, executed: the broker, the user, the ACLs and each client as the page has them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncelog.client import Admin
from oncelog.core.properties import parse_properties
from oncelog.spark.sink_options import sink_options
from peers.kafka.jars import QUICK_OPTIONS, java_command
from peers.kafka.kafka import free_port, kafka_available, run_java
from tests.unit.security.tokens import Authority

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()
TLS = Path(__file__).parents[1] / "data" / "tls"
ADDRESS, FOLDER = "broker.example.org:9093", "/etc/oncelog/"
ADMIN_PASSWORD, PASSWORD = "choose one", "choose another"


def section(title: str) -> str:
    """From its title to the next one of the same level."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^\1 |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[2]


def block(title: str, language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", section(title), re.DOTALL | re.MULTILINE)
    assert found is not None, f"{title}: no block of {language}"
    return found[1]


def blocks(title: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", section(title), re.DOTALL | re.MULTILINE)


class Page:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        for name in ("broker.pem", "ca.pem", "alice.pem"):
            (folder / name).write_bytes((TLS / name).read_bytes())

    def here(self, text: str) -> str:
        """The text with the addresses and files of this test."""
        text = text.replace(f"0.0.0.0:{ADDRESS.rpartition(':')[2]}", f"127.0.0.1:{self.port}")
        return text.replace(ADDRESS, f"127.0.0.1:{self.port}").replace(FOLDER, f"{self.folder}/")

    def oncelog(self, *arguments: str, stdin: str | None = None) -> str:
        command = [sys.executable, "-m", "oncelog", *arguments]
        run = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=180)
        assert run.returncode == 0, run.stderr
        return run.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(tmp_path_factory.mktemp("security"))
    folder = page.folder
    (folder / "server.properties").write_text(page.here(block("A broker with TLS, users and ACLs", "properties")))
    client = page.here(block("Commands, Java clients and Kafka's tools", "properties"))
    (folder / "client.properties").write_text(client)
    as_admin = client.replace("alice", "admin").replace(PASSWORD, ADMIN_PASSWORD)
    as_admin = as_admin.replace("SCRAM-SHA-512", "PLAIN").replace("scram.Scram", "plain.Plain")
    (folder / "admin.properties").write_text(as_admin)
    with serving(folder):
        set_up(page)
        yield page


@contextmanager
def serving(folder: Path) -> Iterator[None]:
    """A broker with the settings in the folder."""
    command = [sys.executable, "-m", "oncelog", "serve", "--data-dir", str(folder / "data")]
    broker = subprocess.Popen(
        [*command, "--config", str(folder / "server.properties")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("oncelog ready on")
        yield
    finally:
        broker.terminate()
        broker.wait(180)


OTHER_LOGINS = {"certificate": "Clients with a certificate", "token": "Clients with a token"}


@pytest.fixture(scope="module")
def by_certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(tmp_path_factory.mktemp("certificate"))
    broker, client = blocks(OTHER_LOGINS["certificate"], "properties")
    yield from other_login(page, broker, client)


@pytest.fixture(scope="module")
def by_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(tmp_path_factory.mktemp("token"))
    authority, settings = Authority(), parse_properties(block("A broker with TLS, users and ACLs", "properties"))
    settings |= parse_properties(block("Tokens", "properties"))
    (page.folder / "keys.json").write_bytes(authority.key_set())
    settings["sasl.oauthbearer.jwks.endpoint.url"] = (page.folder / "keys.json").as_uri()
    issuer, audience = (settings[f"sasl.oauthbearer.expected.{name}"] for name in ("issuer", "audience"))
    token = authority.token(time.time(), user="admin", iss=issuer, aud=audience)
    (page.folder / "token").write_text(token)
    lines = [f"{name}={text}\n" for name, text in settings.items() if ".plain.sasl.jaas.config" not in name]
    (client,) = blocks(OTHER_LOGINS["token"], "properties")
    yield from other_login(page, "".join(lines), client)


def other_login(page: Page, broker: str, client: str) -> Iterator[Page]:
    (page.folder / "server.properties").write_text(page.here(broker))
    (page.folder / "client.properties").write_text(page.here(client))
    with serving(page.folder):
        page.oncelog("topic", "create", "orders", "--config", str(page.folder / "client.properties"))
        yield page


@pytest.mark.parametrize("client", ["Oncelog's client", "confluent-kafka", "kafka-python", "aiokafka"])
@pytest.mark.parametrize("login", OTHER_LOGINS)
def test_a_client_with_another_login(login: str, client: str, request: pytest.FixtureRequest) -> None:
    page: Page = request.getfixturevalue(f"by_{login}")
    of_client = section(OTHER_LOGINS[login]).split(f"\n{client}", 1)[1]
    found = re.search(r"^```python\n(.*?)^```", of_client, re.DOTALL | re.MULTILINE)
    assert found is not None
    run = subprocess.run([sys.executable, "-c", page.here(found[1])], capture_output=True, text=True, timeout=180)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("login", OTHER_LOGINS)
def test_kafkas_own_tool_with_another_login(login: str, request: pytest.FixtureRequest) -> None:
    if (reason := kafka_available()) is not None:
        pytest.skip(reason)
    page: Page = request.getfixturevalue(f"by_{login}")
    options = re.findall(r"`(-Dorg\.[^`]*)`", page.here(section(OTHER_LOGINS[login])))
    assert len(options) == (2 if login == "token" else 0)
    settings = str(page.folder / "client.properties")
    arguments = ("--bootstrap-server", f"127.0.0.1:{page.port}", "--command-config", settings, "--list")
    command = java_command("org.apache.kafka.tools.TopicCommand", *arguments, options=(*QUICK_OPTIONS, *options))
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "orders" in run.stdout.split(), run.stderr


def set_up(page: Page) -> None:
    """With the commands of the page."""
    (added,) = re.findall(r"^\$ oncelog (user add alice .*)$", section("Users"), re.MULTILINE)
    (allowed,) = re.findall(r"^\$ oncelog (acl add --principal User:alice .*)$", section("ACLs"), re.MULTILINE)
    admin = str(page.folder / "admin.properties")
    page.oncelog(*added.replace("admin.properties", admin).split(), "--password-file", "-", stdin=PASSWORD)
    page.oncelog(*shlex.split(allowed), "--config", admin)
    with Admin(dict(parse_properties(Path(admin).read_text()))) as client:
        client.create_topics(["orders"])


def test_our_command(page: Page) -> None:
    text = page.here(section("Commands, Java clients and Kafka's tools"))
    (command,) = re.findall(r"^\$ oncelog (.*)$", text, re.MULTILINE)
    assert "orders" in page.oncelog(*command.split())


def test_kafkas_own_tool(page: Page) -> None:
    if (reason := kafka_available()) is not None:
        pytest.skip(reason)
    text = page.here(section("Commands, Java clients and Kafka's tools"))
    (arguments,) = re.findall(r"^\$ kafka-topics\.sh (.*)$", text, re.MULTILINE)
    run = run_java("org.apache.kafka.tools.TopicCommand", *arguments.split())
    assert "orders" in run.stdout.split(), run.stderr


@pytest.mark.parametrize("client", ["Oncelog's client", "confluent-kafka", "kafka-python", "aiokafka"])
def test_a_client_of_the_page(page: Page, client: str) -> None:
    program = page.here(block(client, "python"))
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert run.returncode == 0, run.stderr


def test_the_settings_for_spark(page: Page) -> None:
    """They are those of the client. tests/spark runs a pipeline with such."""
    names: dict[str, dict[str, str]] = {}
    exec(page.here(block("Spark", "python")), names)
    assert names["options"].keys() == {f"kafka.{name}" for name in names["security"]}
    options = sink_options(
        bootstrap_servers=f"127.0.0.1:{page.port}", kafka=names["security"], transactional_id="x", topic="orders"
    )
    with Admin(options.client) as admin:
        assert "orders" in admin.list_topics()
