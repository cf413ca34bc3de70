"""Oncelog's own controller whose listener has TLS and a login, with brokers of Oncelog (2) and Java (1) under it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cluster.clusters import PATIENT, Cluster, log_bytes, send
from tests.conformance.conftest import require
from tests.waiting import wait_until

TLS = Path(__file__).parents[1] / "data" / "tls"
JAVA, ONCELOG = 1, 2
WITH_JAVA = os.environ.get("ONCELOG_CLUSTER_TESTS") == "all"
"""`make test` has one Oncelog broker under a controller with SASL_SSL."""
PROTOCOLS = ["SASL_SSL", "SSL", "SASL_PLAINTEXT"] if WITH_JAVA else ["SASL_SSL"]
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
NODE = f'{PLAIN} username="node" password="s3cret" user_node="s3cret" user_guest="welcome";'
GUEST = f'{PLAIN} username="guest" password="welcome";'
JAAS = "listener.name.controller.plain.sasl.jaas.config"
KEYSTORE = "listener.name.controller.ssl.keystore.location"
_TLS = {
    "ssl.keystore.location": str(TLS / "broker.pem"),
    "ssl.keystore.type": "PEM",
    "ssl.truststore.location": str(TLS / "ca.pem"),
    "ssl.truststore.type": "PEM",
}
_LOGIN = {
    "sasl.mechanism.controller.protocol": "PLAIN",
    JAAS: NODE,
    "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
}


def security(protocol: str) -> dict[str, str]:
    return {
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": f"CONTROLLER:{protocol},PLAINTEXT:PLAINTEXT",
        **(_TLS if "SSL" in protocol else {}),
        **(_LOGIN if "SASL" in protocol else {}),
    }


def authorized(protocol: str) -> dict[str, str]:
    """The controller's: only the user of brokers may be one. With TLS alone that is the certificate's. Clients of
    brokers may do everything; nobody comes to the controller without a name."""
    user = "node" if "SASL" in protocol else "CN=alice,OU=Ops,O=Acme\\, Inc.,L=Berlin,ST=Berlin,C=DE"
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{user};User:ANONYMOUS",
        **({} if "SASL" in protocol else {"listener.name.controller.ssl.client.auth": "required"}),
    }


class Secured(Cluster):
    protocol = ""

    def broker_settings(self, changes: Mapping[str, str] | None = None) -> dict[str, str]:
        certificate = {} if "SASL" in self.protocol else {KEYSTORE: str(TLS / "alice.pem")}
        return {**security(self.protocol), **certificate, **PATIENT, **(changes or {})}


@pytest.fixture(scope="module", params=PROTOCOLS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    protocol = request.param
    if WITH_JAVA:
        require("kafka")
    started = Secured(tmp_path_factory.mktemp("secured"))
    started.protocol = protocol
    try:
        started.start_own_controller(**security(protocol), **authorized(protocol), **PATIENT)
        started.start_oncelog(ONCELOG, **started.broker_settings())
        if WITH_JAVA:
            started.start_java(JAVA, properties=started.broker_settings())
        yield started
    finally:
        started.stop()


def test_brokers_serve_under_it(cluster: Secured) -> None:
    brokers = [ONCELOG, JAVA] if WITH_JAVA else [ONCELOG]
    for leader in brokers:
        topic, others = f"led-by-{leader}", [each for each in brokers if each != leader]
        cluster.create_topic(topic, [leader, *others])
        send(cluster.producer(), topic, [str(number) for number in range(100)])
        wait_until(
            lambda topic=topic: len({log_bytes(cluster, each, f"{topic}-0") for each in brokers} - {b""}) == 1  # type: ignore[misc]
        )


def test_whoever_has_no_cluster_action_is_no_broker(cluster: Secured) -> None:
    if "SASL" in cluster.protocol:
        stranger, message, timeout_ms = {JAAS: GUEST}, "needs ClusterAction", 120_000
    else:
        stranger, message, timeout_ms = {KEYSTORE: str(TLS / "stranger.pem")}, "gives no answer", 1000
    changes = {**stranger, "initial.broker.registration.timeout.ms": str(timeout_ms)}
    broker = cluster.new_oncelog(7, **cluster.broker_settings(changes))
    with pytest.raises(RuntimeError, match=message):
        broker.start()


@pytest.mark.skipif(not WITH_JAVA, reason="takes minutes: make test-cluster")
def test_a_broker_with_the_wrong_password_does_not_join(cluster: Secured) -> None:
    if "SASL" not in cluster.protocol:
        pytest.skip("nobody logs in")
    wrong = {JAAS: NODE.replace('password="s', 'password="'), "initial.broker.registration.timeout.ms": "5000"}
    with pytest.raises(RuntimeError, match=r"(?i)authentication"):
        cluster.new_oncelog(8, **cluster.broker_settings(wrong)).start()
