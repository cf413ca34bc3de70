"""`oncelog serve --secure`: one command, and every client connects as it is told; others do not."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oncelog.cli.console_process import console_process
from oncelog.cli.main import cli
from oncelog.cli.secure_start import SecureStart
from oncelog.client import Admin, KafkaError, Producer
from oncelog.client.admin import ScramMechanism, ScramUpsertion
from oncelog.core.address import Address
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.properties import parse_properties
from oncelog.security.jaas import parse_jaas
from oncelog.testing import BrokerProcess
from tests.waiting import wait_until


class Secured:
    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self.made = folder / "data-secure"
        self.process: subprocess.Popen[str] | None = None
        self.said = ""

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "oncelog", "serve", "--data-dir", str(self.data_dir), "--secure"]
        command += ["--listen", "127.0.0.1:0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("oncelog ready on"):
            lines.append(self.process.stdout.readline())
            assert lines[-1], "".join(lines)
        self.said = "".join(lines)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            assert self.process.wait(180) == 0

    @property
    def client_settings(self) -> dict[str, str]:
        return dict(parse_properties((self.made / "client.properties").read_text()))

    @property
    def login(self) -> tuple[str, str]:
        options = parse_jaas(self.client_settings["sasl.jaas.config"], key="").options
        return options["username"], options["password"]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("secured"))
    secured.start()
    with Admin(secured.client_settings) as admin:
        admin.create_topics(["tea"])
    yield secured
    secured.stop()


def test_passwords_and_keys_are_for_their_owner_alone(secured: Secured) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in secured.made.iterdir()}
    assert modes == {"ca.pem": 0o644, "broker.pem": 0o600, "client.properties": 0o600}
    assert stat.S_IMODE(secured.made.stat().st_mode) == 0o700
    assert secured.login[1] not in secured.said, "terminals are recorded"
    assert "PRIVATE KEY" not in (secured.made / "ca.pem").read_text()


def test_our_commands_connect_as_they_are_told(secured: Secured) -> None:
    (told,) = [line.split(maxsplit=1)[1] for line in secured.said.splitlines() if line.startswith("  oncelog ")]
    run = subprocess.run([sys.executable, "-m", *told.split()], capture_output=True, text=True, timeout=180)
    assert (run.returncode, "tea" in run.stdout) == (0, True), run.stderr


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exit_code == 0, f"{arguments}: {result.output}"
    return result.output


@pytest.mark.parametrize("way", ["--config", "--command-config", "--set"])
def test_commands_of_every_kind_go_through_tls_and_the_login(secured: Secured, way: str, tmp_path: Path) -> None:
    if way == "--set":
        options = [word for name, text in secured.client_settings.items() for word in ("--set", f"{name}={text}")]
    else:
        options = [way, str(secured.made / "client.properties")]
    topic = f"through{way}"
    run("topic", "create", topic, *options)
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    run("produce", topic, str(lines), "--transactional-id", "t", *options)
    assert run("consume", topic, "--group", topic, *options).split() == ["one", "two"]
    assert topic in run("group", "describe", topic, *options)
    assert "t" in run("txn", "list", *options)
    assert "admin" in run("user", "list", *options)
    assert "there are no such ACLs" in run("acl", "list", *options)
    assert "there are no such quotas" in run("quota", "list", *options)
    assert "tea" in run("cluster", "info", *options) + run("topic", "list", *options)


def test_the_console_goes_through_tls_and_the_login(secured: Secured, capsys: pytest.CaptureFixture[str]) -> None:
    servers, client_file = secured.client_settings["bootstrap.servers"], secured.made / "client.properties"
    # One that is idle, as it is by itself beside a broker, may wait for minutes on a busy machine.
    with console_process(servers, "127.0.0.1:0", client_file, ready=True, priority="equal"):
        address = capsys.readouterr().out.split()[-1]

        def page() -> str:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}topics", timeout=60) as told:
                return str(told.read().decode())
            return ""

        wait_until(lambda: "tea" in page())


def test_a_client_without_password_or_trust_gets_nowhere(secured: Secured) -> None:
    settings = {**secured.client_settings, "default.api.timeout.ms": "60000"}
    wrong = {**settings, "sasl.jaas.config": settings["sasl.jaas.config"].replace(secured.login[1], "guess")}
    without_trust = {key: text for key, text in settings.items() if "truststore" not in key}
    for refused in (wrong, without_trust):
        with pytest.raises(Exception, match=r"(?i)authenti|certificate"), Admin(refused) as admin:
            admin.list_topics()


def test_confluent_kafka_connects_as_it_is_told(secured: Secured) -> None:
    confluent = pytest.importorskip("confluent_kafka.admin")
    admin = confluent.AdminClient(eval_told(secured, "confluent-kafka"))
    assert "tea" in admin.list_topics(timeout=30).topics


def test_kafka_python_connects_as_it_is_told(secured: Secured) -> None:
    kafka = pytest.importorskip("kafka")
    consumer = eval_call(secured, "kafka-python", kafka.KafkaConsumer)
    assert "tea" in consumer.topics()
    consumer.close()


def test_aiokafka_connects_as_it_is_told(secured: Secured) -> None:
    aiokafka = pytest.importorskip("aiokafka")

    async def topics() -> set[str]:
        consumer = eval_call(secured, "aiokafka", aiokafka.AIOKafkaConsumer)
        await consumer.start()
        try:
            return set(await consumer.topics())
        finally:
            await consumer.stop()

    assert "tea" in asyncio.run(topics())


def told(secured: Secured, client: str) -> str:
    """The text for a client: from its name to the next one's."""
    lines = secured.said.splitlines()
    (first,) = [number for number, line in enumerate(lines) if line.startswith(f"  {client} ")]
    text = [lines[first].split(maxsplit=1)[1]]
    for line in lines[first + 1 :]:
        if not line.startswith("      "):
            break
        text.append(line.strip())
    return " ".join(text)


def eval_told(secured: Secured, client: str) -> dict[str, Any]:
    found: dict[str, Any] = eval(told(secured, client), {"PASSWORD": secured.login[1]})
    return found


def eval_call(secured: Secured, client: str, called: Any) -> Any:
    names = {"PASSWORD": secured.login[1], "ssl": ssl, "called": called}
    return eval(f"called({told(secured, client)})", names)


def test_another_start_keeps_certificates_and_password(tmp_path: Path) -> None:
    secured = Secured(tmp_path)
    secured.start()
    before = {name: (secured.made / name).read_bytes() for name in ("ca.pem", "broker.pem")}, secured.login
    secured.stop()
    secured.start()
    try:
        assert before == (
            {name: (secured.made / name).read_bytes() for name in ("ca.pem", "broker.pem")},
            secured.login,
        )
        with Producer(secured.client_settings) as producer, Admin(secured.client_settings) as admin:
            admin.create_topics(["tea"])
            producer.send("tea", b"a").result(60)
    finally:
        secured.stop()


def test_a_lost_password_is_made_anew_and_one_that_was_changed_stays(tmp_path: Path) -> None:
    secured = Secured(tmp_path)
    secured.start()
    lost = secured.login
    secured.stop()
    shutil.rmtree(secured.made)
    secured.start()
    assert secured.login != lost
    with Admin(secured.client_settings) as admin:
        admin.alter_user_scram_credentials([ScramUpsertion("admin", ScramMechanism.SHA_512, "changed")])
    secured.stop()
    secured.start()
    settings = secured.client_settings
    try:
        with pytest.raises(KafkaError, match="invalid credentials"), Admin(settings) as admin:
            admin.list_topics()
        del settings["sasl.jaas.config"]
        with Admin({**settings, "sasl.username": "admin", "sasl.password": "changed"}) as admin:
            admin.list_topics()
    finally:
        secured.stop()


def test_a_certificate_of_an_earlier_start_that_clients_will_refuse_is_told_of(tmp_path: Path) -> None:
    given = BROKER_CONFIG.parse({"listeners": "127.0.0.1:9092", "advertised.listeners": "one.example.org:9092"})
    SecureStart(tmp_path / "data").settings(given)
    again = SecureStart(tmp_path / "data")
    again.settings(given)
    for host in ("one.example.org", "127.0.0.1", "localhost"):
        assert again.certificate_problem(Address(host, 9092)) is None
    for host in ("two.example.org", "192.0.2.7"):
        told = again.certificate_problem(Address(host, 9092))
        made = tmp_path / "data-secure"
        assert told == f"{made}/broker.pem is not for {host}: remove {made} to have another one made"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--set", "ssl.client.auth=required"], "ssl.client.auth: --secure makes this setting itself"),
        (["--listen", "SSL://127.0.0.1:0"], "--secure makes one listener"),
    ],
)
def test_what_it_would_have_to_undo_is_refused(tmp_path: Path, arguments: list[str], text: str) -> None:
    command = [sys.executable, "-m", "oncelog", "serve", "--data-dir", str(tmp_path / "data"), "--secure", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert (run.returncode, text in run.stderr) == (1, True), run.stderr
    assert not (tmp_path / "data").exists()


def test_a_start_without_it_on_the_same_folder_says_that_the_broker_is_open(tmp_path: Path) -> None:
    said = f"{tmp_path / 'data'} was served with --secure, which is left out now"
    for made in (False, True):
        if made:
            (tmp_path / "data-secure").mkdir()
        broker = BrokerProcess(tmp_path / "data", log_level="warning")
        broker.start()
        broker.stop()
        assert (said in broker.log_path.read_text()) is made
