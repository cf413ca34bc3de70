"""Listeners from settings: what is understood, and that half of a security is none."""

from __future__ import annotations

import pytest

from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import ConfigError
from oncelog.protocol.framing import FrameReader, FrameTooLarge
from oncelog.server.listener import Address, Listener, SecurityProtocol, exposed, parse_listeners

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
    assert (secure.mechanisms, secure.passwords, secure.reauth_ms) == (("PLAIN", "SCRAM-SHA-256"), {"eve": "pw"}, 5000)
    assert plain.address == Address("::1", 9092)
    assert "pw" not in repr(secure)


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
        ({"sasl.client.callback.handler.class": "x"}, "Unknown broker config"),
    ],
)  # fmt: skip
def test_what_is_half_said_is_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_listeners(BROKER_CONFIG.parse(settings))


def test_what_others_can_reach_without_security_is_warned_about() -> None:
    (open_to_all,) = listeners(listeners="0.0.0.0:1")
    assert "sasl.enabled.mechanisms" in str(exposed(open_to_all))


@pytest.mark.parametrize(
    ("bytes_in", "why"), [(b"\x16\x03\x01\x02\x00", "TLS"), (b"GET / HTTP", "HTTP"), (b"\x7f\xff\xff\xff", "claims")]
)
def test_a_wrong_protocol_on_a_port_is_named(bytes_in: bytes, why: str) -> None:
    reader = FrameReader()
    reader.get_buffer()[: len(bytes_in)] = bytes_in
    with pytest.raises(FrameTooLarge, match=why):
        reader.buffer_updated(len(bytes_in))
