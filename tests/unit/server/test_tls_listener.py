"""TLS on sockets: handshakes that never end, and certificates that change while clients come and go."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.client import Admin, KafkaError, Producer
from oncelog.server import tls_listener
from oncelog.testing.broker import BrokerProcess
from oncelog.tls import TlsSettings, server_context
from tests.waiting import wait_until

TLS = Path(__file__).parents[2] / "data" / "tls"
HALF_OPEN = 1000


def start(folder: Path, certificate: Path, **settings: str) -> BrokerProcess:
    named = {name.replace("_", "."): text for name, text in settings.items()}
    broker = BrokerProcess(
        folder / "data",
        {"listener.security.protocol.map": "SAFE:SSL", "ssl.keystore.location": certificate, **named},
        arguments=["--listen", "SAFE://127.0.0.1:0"],
    )
    return broker.start()


def client_settings(broker: BrokerProcess) -> dict[str, object]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SSL",
        "ssl.truststore.location": str(TLS / "ca.pem"),
        "default.api.timeout.ms": 20_000,
    }


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return Path(shutil.copy(TLS / "broker.pem", tmp_path / "broker.pem"))


@pytest.fixture
def broker(tmp_path: Path, certificate: Path) -> Iterator[BrokerProcess]:
    broker = start(tmp_path, certificate)
    yield broker
    broker.stop()


def address(broker: BrokerProcess) -> tuple[str, int]:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return host, int(port)


def test_a_thousand_handshakes_that_never_go_on_keep_nobody_out(broker: BrokerProcess) -> None:
    with contextlib.ExitStack() as silent, Producer(client_settings(broker)) as producer:
        with Admin(client_settings(broker)) as admin:
            admin.create_topics(["tea"])
        for number in range(HALF_OPEN):
            half = silent.enter_context(socket.create_connection(address(broker), timeout=20))
            half.sendall(b"\x16\x03\x01\x02\x00" if number % 2 else b"")
        producer.send("tea", b"meanwhile").result(20)
        with Admin(client_settings(broker)) as admin:
            assert "tea" in admin.list_topics(), "a new handshake succeeds too"


def test_handshakes_count_as_connections(tmp_path: Path, certificate: Path) -> None:
    broker = start(tmp_path, certificate, max_connections_per_ip="5")
    with contextlib.ExitStack() as silent:
        halves = [silent.enter_context(socket.create_connection(address(broker), timeout=20)) for _ in range(5)]
        one_more = silent.enter_context(socket.create_connection(address(broker), timeout=20))
        with contextlib.suppress(ConnectionError):
            assert one_more.recv(1) == b"", "it is closed at once"
        for half in halves:
            half.close()
        with Admin(client_settings(broker)) as admin:
            assert admin.list_topics() == {}, "those that went make room"
    broker.stop()


def serial_number(broker: BrokerProcess) -> str:
    context = ssl.create_default_context(cafile=TLS / "ca.pem")
    context.check_hostname = False
    with socket.create_connection(address(broker), timeout=20) as plain, context.wrap_socket(plain) as client:
        found = client.getpeercert()
    return str(found["serialNumber"] if found else None)


def replace(path: Path, content: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    beside.replace(path)


def test_certificates_change_without_a_restart_and_a_bad_one_is_not_used(
    broker: BrokerProcess, certificate: Path
) -> None:
    before = serial_number(broker)
    slow = socket.create_connection(address(broker), timeout=40)
    slow.sendall(b"\x16")
    with Producer(client_settings(broker)) as producer:
        producer.send("tea", b"before").result(20)
        replace(certificate, b"no certificate")
        wait_until(lambda: "cannot be used" in broker.log_path.read_text(), timeout_s=30)
        assert serial_number(broker) == before
        replace(certificate, (TLS / "elsewhere.pem").read_bytes())
        wait_until(lambda: serial_number(broker) != before, timeout_s=30)
        producer.send("tea", b"after, on the same connection").result(20)
    with Admin(client_settings(broker)) as admin, pytest.raises(KafkaError, match="is not trusted"):
        admin.list_topics()
    with slow, contextlib.suppress(ConnectionError):
        assert slow.recv(1) == b"", "a handshake that took too long is ended"


def test_a_context_is_made_only_when_a_file_has_changed(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[TlsSettings] = []

    def counted(settings: TlsSettings) -> ssl.SSLContext:
        made.append(settings)
        return server_context(settings)

    monkeypatch.setattr(tls_listener, "server_context", counted)
    certificates = tls_listener.Certificates(TlsSettings(keystore_location=str(certificate)))
    assert certificates._read_if_changed() is None
    replace(certificate, (TLS / "elsewhere.pem").read_bytes())
    assert certificates._read_if_changed() is not None
    assert len(made) == 2
