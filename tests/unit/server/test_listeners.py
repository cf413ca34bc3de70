"""Listeners from settings: what is understood, and that half of a security is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.core.address import Address
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import ConfigError
from oncelog.protocol.framing import FrameReader, FrameTooLarge
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.server.context import Peer
from oncelog.server.listener import (
    Listener,
    SecurityProtocol,
    exposed,
    listener_of_controller,
    of_controllers,
    parse_listeners,
)
from tests.unit.server.harness import BrokerInProcess

PLAIN_USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_eve="pw";'
JAAS = "listener.name.in.plain.sasl.jaas.config"


def listeners(**entries: str) -> list[Listener]:
    return parse_listeners(BROKER_CONFIG.parse({name.replace("_", "."): text for name, text in entries.items()}))


def test_the_default_is_one_on_the_loopback() -> None:
    (only,) = listeners()
    assert (only.name, only.protocol, only.address) == (
        "PLAINTEXT",
        SecurityProtocol.PLAINTEXT,
        Address("127.0.0.1", 9092),
    )
    assert exposed(only) is None


def test_several_with_names_protocols_and_what_is_advertised() -> None:
    settings = {
        "listeners": "IN://:9094, PLAINTEXT://[::1]:9092,CONTROLLER://:9093",
        "advertised.listeners": "IN://example.org:1",
        "listener.security.protocol.map": "in:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.in.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.in.connections.max.reauth.ms": "5000",
        JAAS: PLAIN_USERS,
    }
    secure, plain = parse_listeners(BROKER_CONFIG.parse(settings))
    assert secure.protocol is SecurityProtocol.SASL_PLAINTEXT
    assert (secure.advertised, plain.advertised) == (Address("example.org", 1), None)
    assert (secure.mechanisms, secure.passwords) == (("PLAIN", "SCRAM-SHA-256"), {"eve": "pw"})
    assert secure.reauth_ms == {"PLAIN": 5000, "SCRAM-SHA-256": 5000}
    assert plain.address == Address("::1", 9092)
    assert "pw" not in repr(secure)


def test_passwords_in_the_line_of_another_mechanism_let_nobody_in_with_plain() -> None:
    settings = {
        "listeners": "IN://:9094",
        "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.in.scram-sha-256.sasl.jaas.config": 'ScramLoginModule required username="a" user_bob="x";',
    }
    (only,) = parse_listeners(BROKER_CONFIG.parse({**settings, JAAS: PLAIN_USERS}))
    assert only.passwords == {"eve": "pw"}
    with pytest.raises(ConfigError, match="PLAIN needs users"):
        parse_listeners(BROKER_CONFIG.parse(settings))


def test_each_mechanism_can_have_a_time_to_log_in_again_of_its_own() -> None:
    given = {
        "listeners": "IN://:1",
        "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "connections.max.reauth.ms": "5000",
        "listener.name.in.scram-sha-256.connections.max.reauth.ms": "7000",
        JAAS: PLAIN_USERS,
    }
    (listener,) = parse_listeners(BROKER_CONFIG.parse(given))
    assert listener.reauth_ms == {"PLAIN": 5000, "SCRAM-SHA-256": 7000}
    for key, value, why in [
        ("scram-sha-512", "7000", "SCRAM-SHA-512 is not among the mechanisms of IN"),
        ("plain", "soon", "connections.max.reauth.ms"),
    ]:
        with pytest.raises(ConfigError, match=why):
            parse_listeners(BROKER_CONFIG.parse({**given, f"listener.name.in.{key}.connections.max.reauth.ms": value}))


def test_an_address_alone_is_advertised_for_the_only_listener() -> None:
    (only,) = listeners(listeners="0.0.0.0:1", advertised_listeners="example.org:9092")
    assert only.advertised == Address("example.org", 9092)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"listeners": "IN://:1"}, "listener.security.protocol.map"),
        ({"listeners": "SASL_PLAINTEXT://:1"}, "sasl.enabled.mechanisms: listener SASL_PLAINTEXT"),
        ({"listeners": "SASL_PLAINTEXT://:1", "sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI is not supported"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "no listener is SASL_PLAINTEXT"),
        ({"listeners": "A://:1,A://:2"}, "two listeners"),
        ({"listeners": "PLAINTEXT://:x"}, "HOST:PORT"),
        ({"advertised.listeners": "OTHER://x:1"}, "OTHER is not among the listeners"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "clients cannot connect to 0.0.0.0:9092"),
        ({"advertised.listeners": "[::]:9092"}, "clients cannot connect to"),
        ({"listener.name.plaintext.plain.connections.max.reauth.ms": "1"}, "without SASL"),
        ({"listener.security.protocol.map": "A:TLS"}, "NAME:PROTOCOL"),
        ({"listener.name.other.sasl.enabled.mechanisms": "PLAIN"}, "no listener OTHER"),
        ({"listener.name.plaintext.sasl.enabled.mechanisms": "PLAIN"}, "without SASL"),
        ({"listener.name.plaintext.sasl.login.class": "x"}, "not a setting of listeners"),
        ({"listeners": "IN://:1", "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
          "sasl.enabled.mechanisms": "PLAIN"}, "PLAIN needs users"),
        ({"listeners": "IN://:1", "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
          "sasl.enabled.mechanisms": "SCRAM-SHA-256", JAAS: PLAIN_USERS}, "not among the mechanisms"),
        ({"listeners": "IN://:1", "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
          "sasl.enabled.mechanisms": "PLAIN", JAAS: 'PlainLoginModule required user_a="";'}, "empty password"),
        ({"listeners": "IN://:1", "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
          "sasl.enabled.mechanisms": "PLAIN", JAAS: 'ScramLoginModule required user_a="b";'}, "login module is one of"),
        ({"listeners": "PLAINTEXT://127.0.0.1:9,SSL://:9"}, "PLAINTEXT and SSL have port 9"),
        ({"listeners": "PLAINTEXT://127.0.0.1:9,SSL://localhost:9"}, "PLAINTEXT and SSL have port 9"),
        ({"sasl.client.callback.handler.class": "x"}, "Unknown broker config"),
        ({"sasl.jaas.config": PLAIN_USERS}, r"listener\.name\.sasl_ssl\.scram-sha-512\.sasl\.jaas\.config"),
    ],
)  # fmt: skip
def test_what_is_half_said_is_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_listeners(BROKER_CONFIG.parse(settings))


def test_listeners_may_share_a_port_where_the_system_tells_them_apart() -> None:
    two = listeners(listeners="A://127.0.0.1:9,B://[::1]:9", listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT")
    assert {each.address.port for each in two} == {9}
    assert len(listeners(listeners="A://:0,B://:0", listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT")) == 2


def test_what_others_can_reach_without_security_is_warned_about() -> None:
    (open_to_all,) = listeners(listeners="0.0.0.0:1")
    warning = str(exposed(open_to_all))
    assert "listener.security.protocol.map" in warning
    assert "sasl.enabled.mechanisms" in warning


@pytest.mark.parametrize(
    ("bytes_in", "why"), [(b"\x16\x03\x01\x02\x00", "TLS"), (b"GET / HTTP", "HTTP"), (b"\x7f\xff\xff\xff", "claims")]
)
def test_a_wrong_protocol_on_a_port_is_named(bytes_in: bytes, why: str) -> None:
    reader = FrameReader()
    reader.get_buffer()[: len(bytes_in)] = bytes_in
    with pytest.raises(FrameTooLarge, match=why):
        reader.buffer_updated(len(bytes_in))


def test_a_secured_file_of_kafka_is_taken_as_it_is() -> None:
    given = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_SSL",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": "/etc/kafka/keystore.jks",
        "ssl.keystore.password": "secret",
        "ssl.key.password": "secret",
        "ssl.truststore.location": "/etc/kafka/truststore.jks",
        "ssl.truststore.password": "secret",
        "ssl.endpoint.identification.algorithm": "",
        "ssl.protocol": "TLSv1.3",
        "ssl.keymanager.algorithm": "SunX509",
        "quota.window.num": "11",
    }
    settings = BROKER_CONFIG.parse(given)
    (listener,) = parse_listeners(settings)
    assert listener.tls is not None
    assert listener.tls.keystore_password == "secret"
    assert any("ssl.protocol has no effect" in warning for warning in settings.warnings)


def test_every_answer_that_names_brokers_has_the_address_of_the_listener_it_was_asked_by(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", {"log.cleaner.enable": "false"})
    node.broker.advertised |= {"IN": Address("in.example", 1), "OUT": Address("out.example", 2)}
    node.create("tea")
    for listener, host, port in [("IN", "in.example", 1), ("OUT", "out.example", 2)]:
        node.peer = Peer("127.0.0.1", "127.0.0.1", listener=listener)
        metadata = node.call(MetadataRequest(topics=[MetadataRequestTopic(name="tea")]), 12)
        cluster = node.call(DescribeClusterRequest(), 1)
        coordinators = node.call(FindCoordinatorRequest(coordinator_keys=["g"], key_type=0), 4).coordinators
        old = node.call(FindCoordinatorRequest(key="g", key_type=0), 2)
        named = [*metadata.brokers, *cluster.brokers, *coordinators, old]
        assert {(each.host, each.port) for each in named} == {(host, port)}
    node.broker.stop(clean=False)


def controller_protocol(**entries: str) -> str:
    """As brokers find it, and the controller itself."""
    given = {name.replace("_", "."): text for name, text in entries.items()}
    name, protocol = of_controllers(BROKER_CONFIG.parse(given))
    own = listener_of_controller(BROKER_CONFIG.parse({**given, "listeners": "127.0.0.1:0"}))
    assert (own.name, own.protocol) == (name, protocol)
    return protocol.value


def test_controllers_are_plaintext_only_where_nothing_is_said_about_security() -> None:
    assert controller_protocol() == "PLAINTEXT"
    assert controller_protocol(controller_listener_names="QUORUM") == "PLAINTEXT"
    names = {"controller_listener_names": "QUORUM", "ssl_keystore_location": "/any.pem"}
    assert controller_protocol(**names, listener_security_protocol_map="QUORUM:SSL") == "SSL"
    assert controller_protocol(controller_listener_names="SSL", ssl_keystore_location="/any.pem") == "SSL"


@pytest.mark.parametrize(
    "given",
    [
        {"listener.security.protocol.map": "INNER:PLAINTEXT"},
        {"listeners": "SSL://127.0.0.1:1"},
        {"controller.listener.names": "CONTROLLER,SASL_SSL"},
    ],
)
def test_a_controller_without_a_protocol_is_refused_where_others_have_one(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"the protocol of CONTROLLER is not in listener\.security\.protocol\.map"):
        of_controllers(BROKER_CONFIG.parse(given))


@pytest.mark.parametrize(
    ("listen", "message"),
    [
        ("CLIENTS://127.0.0.1:1", "CLIENTS is not among controller.listener.names: CONTROLLER"),
        ("CONTROLLER://127.0.0.1:1,PLAINTEXT://127.0.0.1:2", "has one listener"),
    ],
)
def test_a_controller_has_one_listener_which_brokers_know(listen: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        listener_of_controller(BROKER_CONFIG.parse({"listeners": listen}))
