"""A cluster whose brokers log in to their controller, and reach each other by TLS with a login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.clusters import Cluster, log_bytes, running_cluster, send
from tests.conformance.conftest import require
from tests.waiting import wait_until

TLS = Path(__file__).parents[1] / "data" / "tls"
CONTROLLER, JAVA, ONCELOG = 9, 1, 2
_LISTEN = "PLAINTEXT://127.0.0.1:0,INNER://127.0.0.1:0"
_LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="node" password="s3cret" user_node="s3cret";'  # noqa: E501
_SECURITY = {
    "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,INNER:SASL_SSL,PLAINTEXT:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": _LOGIN,
    "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
}
_OF_BROKERS = {
    **_SECURITY,
    "inter.broker.listener.name": "INNER",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.inner.plain.sasl.jaas.config": _LOGIN,
    "listener.name.inner.sasl.enabled.mechanisms": "PLAIN",
    "ssl.keystore.location": str(TLS / "broker.pem"),
    "ssl.keystore.type": "PEM",
    "ssl.truststore.location": str(TLS / "ca.pem"),
    "ssl.truststore.type": "PEM",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("kafka")
    with running_cluster(tmp_path_factory.mktemp("secured")) as started:
        started.start_controller(node_id=CONTROLLER, roles="controller", properties=_SECURITY)
        started.start_java(JAVA, properties=_OF_BROKERS, listeners=["INNER"])
        started.oncelog[ONCELOG] = started.new_oncelog(ONCELOG, listen=_LISTEN, **_OF_BROKERS)
        started.oncelog[ONCELOG].start()
        yield started


@pytest.mark.parametrize("leader", [JAVA, ONCELOG])
def test_replicas_of_both_kinds_are_equal(cluster: Cluster, leader: int) -> None:
    topic, follower = f"led-by-{leader}", JAVA + ONCELOG - leader
    cluster.create_topic(topic, [leader, follower], min_insync_replicas="2")
    send(cluster.producer(), topic, [str(number) for number in range(100)])
    wait_until(lambda: log_bytes(cluster, JAVA, f"{topic}-0") == log_bytes(cluster, ONCELOG, f"{topic}-0") != b"")


def test_transactions_cross_brokers(cluster: Cluster) -> None:
    cluster.create_topic("java", [JAVA])
    cluster.create_topic("oncelog", [ONCELOG])
    for number in range(4):
        producer = cluster.producer(transactional_id=f"id-{number}")
        producer.init_transactions(180)
        producer.begin_transaction()
        producer.produce("java", b"x")
        producer.produce("oncelog", b"x")
        producer.commit_transaction(180)
    for topic in ("java", "oncelog"):
        assert cluster.read(topic, 4, group=f"of {topic}") == [b"x"] * 4


def test_a_broker_with_the_wrong_password_does_not_join(cluster: Cluster) -> None:
    wrong = {
        **_OF_BROKERS,
        "listener.name.controller.plain.sasl.jaas.config": _LOGIN.replace('password="s', 'password="'),
    }
    settings = {**wrong, "initial.broker.registration.timeout.ms": "4000"}
    stranger = cluster.new_oncelog(7, listen=_LISTEN, **settings)
    with pytest.raises(Exception, match=r"(?i)authentication|logged in|log in|login"):
        stranger.start()
