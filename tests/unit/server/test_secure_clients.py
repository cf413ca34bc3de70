"""Real clients on a real broker with SASL, TLS and ACLs: ours, confluent-kafka, kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.client import Admin, Consumer, KafkaError, Producer
from oncelog.client.admin import (
    Acl,
    AclFilter,
    Operation,
    Pattern,
    Permission,
    Resource,
    ScramDeletion,
    ScramMechanism,
    ScramUpsertion,
)
from oncelog.core.broker_config import STANDARD_AUTHORIZER
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.testing.broker import BrokerProcess
from oncelog.testing.zookeeper import free_ports

TLS = Path(__file__).parents[2] / "data" / "tls"
USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_admin="root" user_eve="pw";'
SETTINGS = {
    "listener.security.protocol.map": "IN:SASL_PLAINTEXT,SAFE:SASL_SSL,CERT:SSL",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.in.plain.sasl.jaas.config": USERS,
    "listener.name.safe.plain.sasl.jaas.config": USERS,
    "ssl.keystore.location": TLS / "broker.pem",
    "ssl.truststore.location": TLS / "ca.pem",
    "listener.name.cert.ssl.client.auth": "required",
    "listener.name.cert.ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/,DEFAULT",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin;User:alice",
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


class Secured:
    def __init__(self, folder: Path) -> None:
        self._ports = dict(zip(("IN", "SAFE", "CERT"), free_ports(3), strict=True))
        names = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self._ports.items())
        self.broker = BrokerProcess(folder / "data", SETTINGS, arguments=["--listen", names])

    def servers(self, name: str) -> str:
        return f"127.0.0.1:{self._ports[name]}"

    def of(self, user: str, password: str, mechanism: str = "PLAIN", listener: str = "IN") -> dict[str, Any]:
        protocol = "SASL_PLAINTEXT" if listener == "IN" else "SASL_SSL"
        tls = {"ssl.truststore.location": str(TLS / "ca.pem")} if listener == "SAFE" else {}
        return {
            "bootstrap.servers": self.servers(listener),
            "security.protocol": protocol,
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "default.api.timeout.ms": 60_000,
            **tls,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("secured"))
    secured.broker.start()
    with Admin(secured.of("admin", "root")) as admin:
        admin.create_topics(["tea"])
        for mechanism in ScramMechanism:
            admin.alter_user_scram_credentials([ScramUpsertion("sam", mechanism, "pencil")])
        admin.create_acls(
            [
                Acl(Resource.TOPIC, "tea", Pattern.LITERAL, principal, "*", Operation.ALL, Permission.ALLOW)
                for principal in ("User:sam", "User:eve")
            ]
            + [
                Acl(resource, "g", Pattern.PREFIXED, "User:*", "*", Operation.ALL, Permission.ALLOW)
                for resource in (Resource.GROUP, Resource.TRANSACTIONAL_ID)
            ]
        )
    yield secured
    secured.broker.stop()


def send_and_read(settings: dict[str, Any], value: bytes) -> None:
    with Producer(settings) as producer:
        sent = producer.send("tea", value).result(60)
    with Consumer({**settings, "group.id": f"g-{value.hex()}", "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition("tea", 0)])
        consumer.seek(TopicPartition("tea", 0), sent.offset)
        assert [record.value for record in consumer.poll(60_000)] == [value]


@pytest.mark.parametrize("listener", ["IN", "SAFE"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_our_client(secured: Secured, listener: str, mechanism: str) -> None:
    user, password = ("eve", "pw") if mechanism == "PLAIN" else ("sam", "pencil")
    send_and_read(secured.of(user, password, mechanism, listener), f"{listener} {mechanism}".encode())


def test_our_client_in_a_transaction(secured: Secured) -> None:
    settings = secured.of("sam", "pencil", "SCRAM-SHA-512", "SAFE")
    with Producer({**settings, "transactional.id": "g-1"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("tea", b"committed")
        producer.commit_transaction()
    with pytest.raises(KafkaError) as caught, Producer({**settings, "transactional.id": "other"}) as producer:
        producer.init_transactions()
    assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_jaas_line_does_as_well(secured: Secured) -> None:
    settings = secured.of("", "", "SCRAM-SHA-256")
    del settings["sasl.username"], settings["sasl.password"]
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings["sasl.jaas.config"] = f'{module} required username="sam" password="pencil";'
    with Admin(settings) as admin:
        assert list(admin.list_topics()) == ["tea"]


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"sasl.password": "wrong"}, ErrorCode.SASL_AUTHENTICATION_FAILED, "invalid credentials"),
        ({"sasl.username": "nobody"}, ErrorCode.SASL_AUTHENTICATION_FAILED, "invalid credentials"),
    ],
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_told_at_once(
    secured: Secured, change: dict[str, str], code: ErrorCode, text: str, mechanism: str
) -> None:
    user, password = ("eve", "pw") if mechanism == "PLAIN" else ("sam", "pencil")
    with Admin({**secured.of(user, password, mechanism), **change}) as admin, pytest.raises(KafkaError) as caught:
        admin.list_topics()
    assert (caught.value.code, text in str(caught.value)) == (code, True)


def test_a_user_is_told_what_is_refused_and_sees_only_what_is_allowed(secured: Secured) -> None:
    with Admin(secured.of("admin", "root")) as admin:
        admin.create_topics(["secret"])
        assert set(admin.list_topics()) == {"tea", "secret"}
    with Admin(secured.of("eve", "pw")) as admin:
        assert set(admin.list_topics()) == {"tea"}
        for refused, code in [
            (lambda: admin.create_topics(["mine"]), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            (lambda: admin.delete_topics(["secret"]), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            (lambda: admin.describe_acls(), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            (lambda: admin.describe_user_scram_credentials(), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ]:
            with pytest.raises(KafkaError) as caught:
                refused()
            assert caught.value.code is code


def test_users_and_acls_by_our_admin(secured: Secured) -> None:
    acl = Acl(Resource.TOPIC, "x", Pattern.LITERAL, "User:tim", "*", Operation.READ, Permission.DENY)
    with Admin(secured.of("admin", "root")) as admin:
        admin.alter_user_scram_credentials([ScramUpsertion("tim", ScramMechanism.SHA_512, "a", 8192)])
        assert admin.describe_user_scram_credentials(["tim"]) == {"tim": {ScramMechanism.SHA_512: 8192}}
        assert set(admin.describe_user_scram_credentials()) == {"sam", "tim"}
        admin.alter_user_scram_credentials(delete=[ScramDeletion("tim", ScramMechanism.SHA_512)])
        assert set(admin.describe_user_scram_credentials()) == {"sam"}
        admin.create_acls([acl])
        mine = AclFilter(principal="User:tim")
        assert admin.describe_acls(mine) == [acl]
        assert admin.delete_acls([mine]) == [acl]
        assert admin.describe_acls(mine) == []


# Certificates


def certified(secured: Secured, name: str, **changes: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": secured.servers("CERT"),
        "security.protocol": "SSL",
        "ssl.truststore.location": str(TLS / "ca.pem"),
        "ssl.keystore.location": str(TLS / name),
        "default.api.timeout.ms": 60_000,
        **{key.replace("_", "."): value for key, value in changes.items()},
    }


def test_a_certificate_says_who_somebody_is(secured: Secured) -> None:
    with Admin(certified(secured, "alice.pem")) as admin:
        assert "tea" in admin.list_topics()
        assert admin.describe_acls(), "alice is a super user by the rule that takes her name"
    with Admin(certified(secured, "locked.pem", ssl_key_password="secret")) as admin:
        assert "tea" in admin.list_topics()


@pytest.mark.parametrize("name", ["stranger.pem", "expired.pem"])
def test_a_certificate_that_is_not_trusted_lets_nobody_in(secured: Secured, name: str) -> None:
    with Admin(certified(secured, name, default_api_timeout_ms="3000")) as admin, pytest.raises(KafkaError):
        admin.list_topics()


def test_without_a_certificate_nobody_gets_in(secured: Secured) -> None:
    settings = certified(secured, "alice.pem", default_api_timeout_ms="3000")
    del settings["ssl.keystore.location"]
    with Admin(settings) as admin, pytest.raises(KafkaError):
        admin.list_topics()


def test_a_broker_that_is_not_trusted_is_told_of_at_once(secured: Secured) -> None:
    settings = secured.of("eve", "pw", listener="SAFE")
    settings["ssl.truststore.location"] = str(TLS / "stranger.pem")
    with (
        Admin(settings) as admin,
        pytest.raises(KafkaError, match=r"is not trusted: .*; see ssl\.truststore"),
    ):
        admin.list_topics()


def test_the_name_of_a_broker_is_checked_unless_told_otherwise(tmp_path: Path) -> None:
    settings = {
        "listener.security.protocol.map": "SAFE:SSL",
        "ssl.keystore.location": TLS / "elsewhere.pem",
    }
    broker = BrokerProcess(tmp_path / "data", settings, arguments=["--listen", "SAFE://127.0.0.1:0"])
    broker.start()
    trusting = {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SSL",
        "ssl.truststore.certificates": (TLS / "ca.pem").read_text().replace("\n", " "),
    }
    why = r"certificate is not valid for '127\.0\.0\.1'; the broker's certificate needs the address"
    with Admin(trusting) as admin, pytest.raises(KafkaError, match=why):
        admin.list_topics()
    with Admin({**trusting, "ssl.endpoint.identification.algorithm": ""}) as admin:
        assert admin.list_topics() == {}
    broker.stop()


# Other people's clients


def test_confluent_kafka(secured: Secured) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    for listener, mechanism in [("IN", "PLAIN"), ("SAFE", "SCRAM-SHA-256"), ("SAFE", "SCRAM-SHA-512")]:
        user, password = ("eve", "pw") if mechanism == "PLAIN" else ("sam", "pencil")
        settings = secured.of(user, password, mechanism, listener)
        del settings["default.api.timeout.ms"]
        if settings.pop("ssl.truststore.location", None):
            settings["ssl.ca.location"] = str(TLS / "ca.pem")
        failures: list[Any] = []
        producer = confluent.Producer(settings)
        producer.produce("tea", b"confluent", on_delivery=lambda error, _, told=failures: told.append(error))
        producer.flush(20)
        assert failures == [None]


def test_kafka_python_and_its_admin(secured: Secured) -> None:
    kafka = pytest.importorskip("kafka")
    for listener, mechanism in [("IN", "PLAIN"), ("SAFE", "SCRAM-SHA-512")]:
        settings: dict[str, Any] = {
            "bootstrap_servers": secured.servers(listener),
            "security_protocol": "SASL_SSL" if listener == "SAFE" else "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "eve" if mechanism == "PLAIN" else "sam",
            "sasl_plain_password": "pw" if mechanism == "PLAIN" else "pencil",
        }
        if listener == "SAFE":
            settings["ssl_cafile"] = str(TLS / "ca.pem")
        producer = kafka.KafkaProducer(**settings)
        assert producer.send("tea", b"kafka-python").get(20).topic == "tea"
        producer.close()


def test_aiokafka(secured: Secured) -> None:
    aiokafka = pytest.importorskip("aiokafka")

    async def send() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=secured.servers("SAFE"),
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username="sam",
            sasl_plain_password="pencil",
            ssl_context=ssl.create_default_context(cafile=TLS / "ca.pem"),
        )
        await producer.start()
        try:
            assert (await producer.send_and_wait("tea", b"aiokafka")).topic == "tea"
        finally:
            await producer.stop()

    asyncio.run(send())


# What is hostile


@pytest.mark.parametrize("listener", ["IN", "SAFE", "CERT"])
@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01" + bytes(100), b"GET / HTTP/1.1\r\n\r\n", b"\x7f\xff\xff\xff", b"\0" * 64]
)
def test_anything_else_is_closed_and_others_go_on(secured: Secured, listener: str, sent: bytes) -> None:
    host, port = secured.servers(listener).split(":")
    with socket.create_connection((host, int(port)), timeout=60) as stranger:
        stranger.sendall(sent)
        stranger.settimeout(60)
        with contextlib.suppress(ConnectionError):
            while stranger.recv(4096):
                pass
    with Admin(secured.of("eve", "pw", listener="SAFE")) as admin:
        assert "tea" in admin.list_topics()


def test_a_frame_of_a_client_that_has_not_logged_in_is_bounded(secured: Secured) -> None:
    host, port = secured.servers("IN").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as stranger:
        stranger.sendall((524_289).to_bytes(4, "big"))
        stranger.settimeout(60)
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(1) == b""
