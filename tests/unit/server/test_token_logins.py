"""Logging in with tokens: real clients on a real broker, what half of a configuration does, where keys come from."""

from __future__ import annotations

import asyncio
import http.server
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.client import Admin, KafkaError
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import ConfigError
from oncelog.core.worker import InlineWorker
from oncelog.security.oauthbearer import TokenRules
from oncelog.server import key_set
from oncelog.server.key_set import MISSED_MAX, KeySet, read_key_set
from oncelog.server.listener import OAuthSettings, parse_listeners
from oncelog.testing.broker import BrokerProcess
from tests.unit.security.tokens import AUDIENCE, ISSUER, Authority
from tests.unit.server.held_worker import HeldWorker
from tests.virtual_clock import VirtualScheduler

TLS = Path(__file__).parents[2] / "data" / "tls"
SKEW_S = 1
LIFETIME_S = 5
"""Of tokens that end while the test runs: longer than a busy machine needs for a login."""
RULES = {
    "sasl.oauthbearer.expected.audience": AUDIENCE,
    "sasl.oauthbearer.expected.issuer": ISSUER,
}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "keys.json").write_bytes(authority.key_set())
    settings = {
        "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "keys.json").as_uri(),
        "sasl.oauthbearer.clock.skew.seconds": SKEW_S,
        **RULES,
    }
    broker = BrokerProcess(folder / "data", settings, arguments=["--listen", "IN://127.0.0.1:0"]).start()
    with Admin(client_settings(broker, folder, authority.token(time.time()))) as admin:
        admin.create_topics(["tea"])
    yield broker
    broker.stop()


def client_settings(broker: BrokerProcess, folder: Path, token: str) -> dict[str, Any]:
    (folder / "token").write_text(token + "\n")
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": (folder / "token").as_uri(),
        "default.api.timeout.ms": 30_000,
    }


def test_our_client(broker: BrokerProcess, authority: Authority, tmp_path: Path) -> None:
    with Admin(client_settings(broker, tmp_path, authority.token(time.time()))) as admin:
        assert "tea" in admin.list_topics()


def test_a_token_that_is_not_good_lets_nobody_in(broker: BrokerProcess, authority: Authority, tmp_path: Path) -> None:
    for token in (authority.token(time.time() - 9000), Authority().token(time.time()), "nonsense"):
        settings = client_settings(broker, tmp_path, token)
        with Admin(settings) as admin, pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
            admin.list_topics()
    log = broker.log_path.read_text()
    assert "it has expired" in log
    assert "eyJ" not in log, "no token is logged"


def test_a_client_whose_token_file_is_missing_is_told(broker: BrokerProcess, tmp_path: Path) -> None:
    settings = client_settings(broker, tmp_path, "x")
    (tmp_path / "token").unlink()
    with Admin(settings) as admin, pytest.raises(KafkaError, match="no token can be read from"):
        admin.list_topics()


def test_confluent_kafka(broker: BrokerProcess, authority: Authority) -> None:
    confluent = pytest.importorskip("confluent_kafka.admin")
    now_s = time.time()
    admin = confluent.AdminClient(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "OAUTHBEARER",
            "oauth_cb": lambda _: (authority.token(now_s), now_s + 3600),
        }
    )
    admin.poll(0)
    assert "tea" in admin.list_topics(timeout=30).topics


def test_aiokafka(broker: BrokerProcess, authority: Authority) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    abc = pytest.importorskip("aiokafka.abc")

    class Provider(abc.AbstractTokenProvider):  # type: ignore[misc, name-defined]
        async def token(self) -> str:
            return authority.token(time.time())

    async def topics() -> set[str]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Provider(),
        )
        await consumer.start()
        try:
            return set(await consumer.topics())
        finally:
            await consumer.stop()

    assert "tea" in asyncio.run(topics())


def test_a_session_ends_with_its_token(broker: BrokerProcess, authority: Authority, tmp_path: Path) -> None:
    settings = client_settings(broker, tmp_path, authority.token(time.time(), lifetime_s=LIFETIME_S))
    ends_s = time.monotonic() + LIFETIME_S + SKEW_S
    with Admin({**settings, "default.api.timeout.ms": 30_000}) as admin:
        assert "tea" in admin.list_topics()
        with pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
            while time.monotonic() < ends_s + 60:
                assert "tea" in admin.list_topics()
                time.sleep(0.1)
    assert time.monotonic() > ends_s - 1


def test_a_token_that_is_renewed_keeps_the_connection(
    broker: BrokerProcess, authority: Authority, tmp_path: Path
) -> None:
    for _ in range(5):  # a client logs in again when a twentieth of its session is left: too late on a busy machine
        cut_off = broker.log_path.read_text().count("its session has ended")
        with Admin(client_settings(broker, tmp_path, authority.token(time.time(), lifetime_s=LIFETIME_S))) as admin:
            assert "tea" in admin.list_topics()
            (tmp_path / "token").write_text(authority.token(time.time()))
            end_s = time.monotonic() + LIFETIME_S + SKEW_S + 1
            while time.monotonic() < end_s:
                assert "tea" in admin.list_topics()
                time.sleep(0.1)
        if broker.log_path.read_text().count("its session has ended") == cut_off:
            return
    pytest.fail("the connection is cut off each time")


# Settings


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({**RULES}, "needs the keys of its tokens"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "http://x/keys", **RULES}, "must begin with https://"),
        (
            {"sasl.oauthbearer.jwks.endpoint.url": "https://x/keys", "sasl.oauthbearer.expected.issuer": "*"},
            "expected.audience: .* needs one",
        ),
        (
            {"sasl.oauthbearer.jwks.endpoint.url": "https://x/keys", "sasl.oauthbearer.expected.audience": "*"},
            "expected.issuer: .* needs one",
        ),
        (
            {
                "sasl.oauthbearer.jwks.endpoint.url": "https://x/keys",
                "oncelog.oauthbearer.unsecured.enable": "true",
                **RULES,
            },
            "both are given",
        ),
        (
            {
                "sasl.oauthbearer.jwks.endpoint.url": "https://x/keys",
                **RULES,
                "listener.name.in.oauthbearer.sasl.server.callback.handler.class": "evil.Handler",
            },
            "no class is loaded",
        ),
    ],
)
def test_half_of_a_configuration_keeps_the_broker_from_starting(settings: dict[str, str], why: str) -> None:
    given = {
        "listeners": "IN://127.0.0.1:0",
        "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        **settings,
    }
    with pytest.raises(ConfigError, match=why):
        parse_listeners(BROKER_CONFIG.parse(given))


def test_what_kafkas_users_have_in_their_files_is_understood() -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    prefix = "listener.name.in."
    given = {
        "listeners": "IN://127.0.0.1:0",
        "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
        f"{prefix}sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{prefix}oauthbearer.sasl.jaas.config": module,
        f"{prefix}oauthbearer.sasl.server.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        f"{prefix}sasl.oauthbearer.jwks.endpoint.url": "https://issuer.example/keys",
        f"{prefix}sasl.oauthbearer.expected.audience": "a,b",
        f"{prefix}sasl.oauthbearer.expected.issuer": "*",
    }
    (listener,) = parse_listeners(BROKER_CONFIG.parse(given))
    assert listener.oauth is not None
    assert listener.oauth.rules == TokenRules(("a", "b"), None)


def test_settings_of_tokens_without_a_listener_for_them_are_refused() -> None:
    with pytest.raises(ConfigError, match="no listener has OAUTHBEARER"):
        parse_listeners(BROKER_CONFIG.parse({"sasl.oauthbearer.expected.issuer": "x"}))


def oauth_settings(path: Path) -> OAuthSettings:
    return OAuthSettings(TokenRules(), path.as_uri(), 3_600_000, 100, 10_000)


def test_without_a_file_of_keys_there_is_no_start(tmp_path: Path) -> None:
    settings = oauth_settings(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="no keys can be read there"):
        KeySet(settings, VirtualScheduler(), InlineWorker())


# Where keys come from


def test_an_unknown_key_is_looked_for_once_and_not_for_everybody(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys.json").write_bytes(authority.key_set("r"))
    reads: list[str] = []

    def counted(url: str) -> dict[str, Any]:
        reads.append(url)
        return read_key_set(url)

    monkeypatch.setattr(key_set, "read_key_set", counted)
    clock = VirtualScheduler()
    keys = KeySet(oauth_settings(tmp_path / "keys.json"), clock, InlineWorker())
    keys.start()
    (tmp_path / "keys.json").write_bytes(authority.key_set())
    assert keys.keys.keys() == {"r"}
    for _ in range(3):
        keys.miss("e")
    assert (keys.keys.keys(), len(reads)) == ({"r", "e"}, 2)
    for number in range(100):
        keys.miss(f"made up {number}")
    assert len(reads) <= MISSED_MAX + 2
    (tmp_path / "keys.json").unlink()
    clock.advance_ms(3_600_000)
    assert keys.keys.keys() == {"r", "e"}, "what was read last stays in use"
    (tmp_path / "keys.json").write_bytes(authority.key_set("e"))
    clock.advance_ms(10_000)
    assert keys.keys.keys() == {"e"}, "failures are tried again soon"


def test_keys_are_read_again_though_an_early_read_is_under_way_when_it_is_due(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "keys.json").write_bytes(authority.key_set())
    clock, worker = VirtualScheduler(), HeldWorker()
    keys = KeySet(oauth_settings(tmp_path / "keys.json"), clock, worker)
    keys.start()
    clock.advance_ms(3_599_999)
    keys.miss("made up")
    clock.advance_ms(1)
    worker.finish(clock)
    (tmp_path / "keys.json").write_bytes(authority.key_set("e"))
    clock.advance_ms(3_600_000)
    worker.finish(clock)
    assert keys.keys.keys() == {"e"}, "a key that was withdrawn is in use for ever"


@pytest.fixture
def issuer(authority: Authority) -> Iterator[str]:
    """An https server with keys at /keys; /away points elsewhere, /large is large."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = b"x" * (key_set.CONTENT_BYTES_MAX + 1) if self.path == "/large" else authority.key_set()
            self.send_response(302 if self.path == "/away" else 200)
            if self.path == "/away":
                self.send_header("Location", "http://127.0.0.1:1/keys")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "broker.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(120)


def test_keys_are_read_with_tls_only(issuer: str) -> None:
    def trusting() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=TLS / "ca.pem")

    assert read_key_set(f"{issuer}/keys", trusting).keys() == {"r", "e"}
    with pytest.raises(OSError, match=r"CERTIFICATE_VERIFY_FAILED|certificate"):
        read_key_set(f"{issuer}/keys")
    with pytest.raises(OSError, match="without TLS"):
        read_key_set(f"{issuer}/away", trusting)
    with pytest.raises(ValueError, match="larger than"):
        read_key_set(f"{issuer}/large", trusting)
