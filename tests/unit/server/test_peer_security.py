"""How a broker connects to other nodes, by the settings that Kafka has for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.client.config import ClientConfig
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import ConfigError
from oncelog.server.listener import between_brokers, of_controllers, parse_listeners
from oncelog.server.peer_security import peer_config

TLS = Path(__file__).parents[2] / "data" / "tls"
MECHANISM = "sasl.mechanism.inter.broker.protocol"
SASL = {
    "listeners": "INNER://127.0.0.1:1",
    "listener.security.protocol.map": "INNER:SASL_SSL",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    MECHANISM: "SCRAM-SHA-512",
    "ssl.keystore.location": str(TLS / "broker.pem"),
    "ssl.truststore.location": str(TLS / "ca.pem"),
    "listener.name.inner.scram-sha-512.sasl.jaas.config":
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="node" password="secret";',
}  # fmt: skip


def to_brokers(given: dict[str, str]) -> ClientConfig:
    settings = BROKER_CONFIG.parse(given)
    listener = between_brokers(parse_listeners(settings), settings)
    return peer_config(settings, "7", listener.name, listener.protocol, MECHANISM)


def test_the_listener_between_brokers_gives_protocol_user_and_certificates() -> None:
    config = to_brokers(SASL)
    assert (config.security_protocol, config.sasl_mechanism, config.client_id) == ("SASL_SSL", "SCRAM-SHA-512", "7")
    assert config.credentials == ("node", "secret")
    assert config.ssl_truststore_location == str(TLS / "ca.pem")
    assert config.tls is not None and config.tls.check_hostname
    assert not to_brokers(SASL | {"ssl.endpoint.identification.algorithm": ""}).ssl_endpoint_identification_algorithm


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({MECHANISM: ""}, "PLAIN or SCRAM; name which"),
        ({MECHANISM: "GSSAPI"}, "PLAIN or SCRAM; name which"),
        ({MECHANISM: "SCRAM-SHA-256"}, "the broker logs in with what it has"),
        (
            {"listener.name.inner.scram-sha-512.sasl.jaas.config": "x.ScramLoginModule required;"},
            "username and password",
        ),
        ({"ssl.truststore.location": "/nowhere.pem"}, "nowhere"),
    ],
)
def test_what_is_missing_is_told_at_the_start(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        to_brokers(SASL | changes)


def test_the_listener_of_controllers_may_have_another_protocol() -> None:
    settings = BROKER_CONFIG.parse(
        {
            "listeners": "PLAINTEXT://127.0.0.1:1",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:SSL,PLAINTEXT:PLAINTEXT",
            "listener.name.controller.ssl.truststore.location": str(TLS / "ca.pem"),
        }
    )
    parse_listeners(settings)
    config = peer_config(settings, "7", *of_controllers(settings), "sasl.mechanism.controller.protocol")
    assert (config.security_protocol, config.ssl_truststore_location) == ("SSL", str(TLS / "ca.pem"))
    plain = BROKER_CONFIG.parse({"listeners": "PLAINTEXT://127.0.0.1:1"})
    config = peer_config(plain, "7", *of_controllers(plain), "sasl.mechanism.controller.protocol")
    assert config.security_protocol == "PLAINTEXT"
