"""TLS on sockets: handshakes that never end, and certificates that change while clients come and go."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest

from oncelog.client import Admin, KafkaError, Producer
from oncelog.server import tls_listener
from oncelog.server.metrics_port import CONNECTIONS_MAX
from oncelog.testing.broker import BrokerProcess
from oncelog.tls import TlsSettings, server_context
from peers.kafka.kafka import free_port
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
        "default.api.timeout.ms": 60_000,
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
            half = silent.enter_context(socket.create_connection(address(broker), timeout=60))
            half.sendall(b"\x16\x03\x01\x02\x00" if number % 2 else b"")
        producer.send("tea", b"meanwhile").result(60)
        with Admin(client_settings(broker)) as admin:
            assert "tea" in admin.list_topics(), "a new handshake succeeds too"


def test_handshakes_count_as_connections(tmp_path: Path, certificate: Path) -> None:
    broker = start(tmp_path, certificate, max_connections_per_ip="5")
    with contextlib.ExitStack() as silent:
        halves = [silent.enter_context(socket.create_connection(address(broker), timeout=60)) for _ in range(5)]
        one_more = silent.enter_context(socket.create_connection(address(broker), timeout=60))
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
    with socket.create_connection(address(broker), timeout=60) as plain, context.wrap_socket(plain) as client:
        found = client.getpeercert()
    return str(found["serialNumber"] if found else None)


def replace(path: Path, content: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    beside.replace(path)


def drip(slow: socket.socket) -> None:
    """A handshake that goes on, a byte at a time, and never comes to an end."""
    with contextlib.suppress(OSError):
        for byte in b"\x16\x03\x01\x02\x00" + bytes(512):
            slow.sendall(bytes([byte]))
            time.sleep(0.2)


def client_hello() -> bytes:
    context = ssl.create_default_context(cafile=TLS / "ca.pem")
    arriving, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(arriving, sent, server_hostname="localhost").do_handshake()
    return sent.read()


def changed(hello: bytes, source: random.Random) -> bytes:
    """Bits flipped, cut off, repeated, filled."""
    content = bytearray(hello)
    for _ in range(source.randint(1, 5)):
        place = source.randrange(len(content)) if content else 0
        match source.randrange(4):
            case 0 if content:
                content[place] ^= 1 << source.randrange(8)
            case 1:
                del content[place:]
            case 2:
                content[place:place] = source.randbytes(source.randint(1, 40))
            case _:
                content += content[place:]
    return bytes(content)


def test_changed_handshakes_harm_nobody(broker: BrokerProcess) -> None:
    """From a seed. Each ends with an alert or a close, or waits for more until its time is over."""
    hello = client_hello()
    with contextlib.ExitStack() as open_still, Producer(client_settings(broker)) as producer:
        for seed in range(300):
            stranger = open_still.enter_context(socket.create_connection(address(broker), timeout=60))
            with contextlib.suppress(ConnectionError):
                stranger.sendall(changed(hello, random.Random(seed)))
            if seed % 50 == 0:
                producer.send("tea", b"meanwhile").result(60)
        with Admin(client_settings(broker)) as admin:
            assert "tea" in admin.list_topics()
    assert "Traceback" not in broker.log_path.read_text()


@pytest.mark.parametrize("sent", [b"\0\0\0\x14\0\x12\0\x03\0\0\0\1\0\4test\0\2x\2y\0", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_client_without_tls_is_named_in_the_log(broker: BrokerProcess, sent: bytes) -> None:
    with socket.create_connection(address(broker), timeout=60) as plain, contextlib.suppress(ConnectionError):
        plain.sendall(sent)
        while plain.recv(4096):
            pass
    wait_until(lambda: "it does not speak TLS" in broker.log_path.read_text())


def test_whoever_only_looks_whether_anybody_listens_is_not_in_the_log(broker: BrokerProcess) -> None:
    for _ in range(3):
        socket.create_connection(address(broker), timeout=60).close()
    with socket.create_connection(address(broker), timeout=60) as cut_short:
        cut_short.sendall(client_hello()[:20])
    wait_until(lambda: "a TLS handshake of" in broker.log_path.read_text())
    with Admin(client_settings(broker)) as admin:
        assert admin.list_topics() == {}
    assert broker.log_path.read_text().count("a TLS handshake of") == 1


def failed_logins(broker: BrokerProcess) -> list[dict[str, str]]:
    lines = broker.log_path.read_text().splitlines()
    entries = [json.loads(line[line.index("{") :]) for line in lines if "oncelog.audit" in line]
    return [entry for entry in entries if entry["event"] == "login-failed"]


@pytest.mark.parametrize(
    ("certificate_of_client", "why"),
    [
        ("stranger.pem", "is not accepted: self"),
        ("expired.pem", "is not accepted: certificate has expired"),
        (None, "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        ("odd.pem", "no rule of ssl.principal.mapping.rules is for"),
    ],
)
def test_a_certificate_that_lets_nobody_in_is_in_the_audit_log(
    tmp_path: Path, certificate: Path, certificate_of_client: str | None, why: str
) -> None:
    odd = (TLS / "odd.pem").read_text()
    trusted = tmp_path / "trusted.pem"
    trusted.write_text((TLS / "ca.pem").read_text() + odd[odd.index("-----BEGIN CERTIFICATE") :])
    broker = start(
        tmp_path,
        certificate,
        ssl_client_auth="required",
        ssl_truststore_location=str(trusted),
        ssl_principal_mapping_rules="RULE:^CN=(.*?),.*$/$1/",
    )
    settings = client_settings(broker)
    with Admin({**settings, "ssl.keystore.location": str(TLS / "alice.pem")}) as admin:
        assert admin.list_topics() == {}
    assert failed_logins(broker) == []
    if certificate_of_client is not None:
        settings["ssl.keystore.location"] = str(TLS / certificate_of_client)
    with Admin({**settings, "default.api.timeout.ms": 3_000}) as admin, pytest.raises(KafkaError):
        admin.list_topics()
    wait_until(lambda: failed_logins(broker))
    entry = failed_logins(broker)[0]
    assert (entry["host"], entry["listener"], entry["mechanism"]) == ("127.0.0.1", "SAFE", "certificate")
    assert why in entry["detail"]
    broker.stop()


def only(version: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(TLS / "ca.pem")
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # so that it is not the client that refuses
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    return context


def test_older_protocols_are_refused(broker: BrokerProcess) -> None:
    def spoken(version: str) -> str | None:
        with (
            socket.create_connection(address(broker), timeout=60) as plain,
            only(version).wrap_socket(plain, server_hostname="localhost") as client,
        ):
            return client.version()

    assert (spoken("TLSv1_2"), spoken("TLSv1_3")) == ("TLSv1.2", "TLSv1.3")
    for version in ("TLSv1", "TLSv1_1"):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            spoken(version)


def expired_certificate(path: Path) -> Path:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    ended = datetime.now(UTC) - timedelta(days=1)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(ended - timedelta(days=1))
        .not_valid_after(ended)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    own = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(own + made.public_bytes(pem))
    return path


def test_a_certificate_of_the_broker_that_has_expired_is_told_of_at_once(tmp_path: Path) -> None:
    expired = expired_certificate(tmp_path / "expired.pem")
    broker = start(tmp_path, expired)
    settings = {**client_settings(broker), "ssl.truststore.location": str(expired)}
    with Admin(settings) as admin, pytest.raises(KafkaError, match="certificate has expired; the broker needs another"):
        admin.list_topics()
    broker.stop()


def test_certificates_change_without_a_restart_and_a_bad_one_is_not_used(
    broker: BrokerProcess, certificate: Path
) -> None:
    before = serial_number(broker)
    slow = socket.create_connection(address(broker), timeout=120)
    threading.Thread(target=drip, args=[slow], daemon=True).start()
    with Producer(client_settings(broker)) as producer:
        producer.send("tea", b"before").result(60)
        replace(certificate, b"no certificate")
        wait_until(lambda: "cannot be used" in broker.log_path.read_text())
        assert serial_number(broker) == before
        replace(certificate, (TLS / "elsewhere.pem").read_bytes())
        wait_until(lambda: serial_number(broker) != before)
        producer.send("tea", b"after, on the same connection").result(60)
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


def scrape(port: int, certificate: Path | None = None) -> tuple[str, str]:
    """What the port says, and the serial number of its certificate."""
    context = ssl.create_default_context(cafile=TLS / "ca.pem")
    context.check_hostname = False
    if certificate is not None:
        context.load_cert_chain(certificate)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain, context.wrap_socket(plain) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        found = client.getpeercert()
        answer = b""
        while chunk := client.recv(65_536):
            answer += chunk
    return answer.decode(), str(found["serialNumber"] if found else None)


def test_metrics_have_tls_too(tmp_path: Path, certificate: Path) -> None:
    port = free_port()
    broker = start(
        tmp_path,
        certificate,
        oncelog_metrics_port=str(port),
        oncelog_metrics_tls_enable="true",
        ssl_client_auth="required",
        ssl_truststore_location=str(TLS / "ca.pem"),
    )
    text, before = scrape(port, TLS / "alice.pem")
    assert "oncelog_" in text
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        assert scrape(port)[0] == "", "without a certificate there is no answer"
    replace(certificate, (TLS / "elsewhere.pem").read_bytes())
    wait_until(lambda: scrape(port, TLS / "alice.pem")[1] != before)
    broker.stop()


def test_silent_clients_of_metrics_with_tls_take_no_descriptors(tmp_path: Path, certificate: Path) -> None:
    port = free_port()
    broker = start(tmp_path, certificate, oncelog_metrics_port=str(port), oncelog_metrics_tls_enable="true")
    descriptors = Path(f"/proc/{broker.pid}/fd")
    before = len(list(descriptors.iterdir()))
    with contextlib.ExitStack() as clients:
        for _ in range(200):
            clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert scrape(port)[0] == "", "there are as many clients as may be"
        assert len(list(descriptors.iterdir())) < before + CONNECTIONS_MAX + 10
    wait_until(lambda: "oncelog_" in answered(port))
    broker.stop()


def answered(port: int) -> str:
    try:
        return scrape(port)[0]
    except (ssl.SSLError, ConnectionError):
        return ""
