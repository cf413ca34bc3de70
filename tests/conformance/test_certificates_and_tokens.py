"""The five clients of `test_security` with other logins, on both brokers: a client certificate, and a token."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from kafka.net.sasl.oauth import AbstractTokenProvider

from oncelog.client import Admin, KafkaError
from oncelog.client.admin import Acl, Operation, Pattern, Permission, Resource
from tests.conformance import brokers
from tests.conformance.brokers import SECURED, TLS, TOKEN_LOGIN, authority, files_for_java
from tests.conformance.test_security import (
    CA,
    NO_GROUP,
    NO_TOPIC,
    OK,
    Aiokafka,
    Confluent,
    Java,
    KafkaPython,
    Oncelog,
    User,
)
from tests.waiting import wait_until

ALICE: Final = str(TLS / "alice.pem")
TOKEN_USER: Final = "tom"
"""One that no transcript is about: its ACLs stay."""
PRINCIPALS: Final = {"certificate": "User:OPS-ALICE", "token": f"User:{TOKEN_USER}"}
EXPECTED: Final = {
    "write mine": OK,
    "write other": NO_TOPIC,
    "read mine": OK,
    "join other": NO_GROUP,
    "topics": ["mine"],
}


@pytest.fixture(params=[*PRINCIPALS])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def user(way: str, broker_kind: str, unique: Callable[[str], str], tmp_path: Path) -> User:
    broker = brokers.get(broker_kind, 2, SECURED)
    token_file = tmp_path / "token"
    token_file.write_text(authority().token(time.time(), user=TOKEN_USER))
    servers = broker.certificate_servers if way == "certificate" else broker.tls_servers
    assert servers is not None
    user = User(servers, unique("w"), str(token_file))
    kinds = (Resource.TOPIC, Resource.GROUP)
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.create_topics([user.of("mine"), user.of("other")])
        admin.create_acls(
            Acl(kind, user.of("mine"), Pattern.PREFIXED, PRINCIPALS[way], "*", Operation.ALL, Permission.ALLOW)
            for kind in kinds
        )
    wait_until(lambda: sees_mine(user, way), "the user can log in and sees the topic")
    return user


def sees_mine(user: User, way: str) -> bool:
    with contextlib.suppress(KafkaError), Admin(CLIENTS["oncelog", way](user, Path()).settings(user)) as admin:
        return user.of("mine") in admin.list_topics()
    return False


class CertifiedOncelog(Oncelog):
    def settings(self, user: User) -> dict[str, Any]:
        return {
            "bootstrap.servers": user.servers,
            "security.protocol": "SSL",
            "ssl.truststore.location": CA,
            "ssl.keystore.location": ALICE,
        }


class CertifiedConfluent(Confluent):
    def settings(self, user: User) -> dict[str, Any]:
        return {"security.protocol": "SSL", "ssl.certificate.location": ALICE, "ssl.key.location": ALICE}


class CertifiedKafkaPython(KafkaPython):
    def settings(self, user: User) -> dict[str, Any]:
        return {"security_protocol": "SSL", "ssl_certfile": ALICE, "ssl_keyfile": ALICE}


class CertifiedAiokafka(Aiokafka):
    def settings(self, user: User) -> dict[str, Any]:
        context = ssl.create_default_context(cafile=CA)
        context.load_cert_chain(ALICE)
        return {"security_protocol": "SSL", "ssl_context": context}


class CertifiedJava(Java):
    def settings(self, user: User, password: str) -> dict[str, str]:
        return {"security.protocol": "SSL", "ssl.keystore.type": "PEM", "ssl.keystore.location": ALICE}

    def _properties(self, password: str) -> Path:
        return super()._properties("certificate")


class TokenOncelog(Oncelog):
    def settings(self, user: User) -> dict[str, Any]:
        return {
            "bootstrap.servers": user.servers,
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": CA,
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": Path(user.password).as_uri(),
        }


class TokenConfluent(Confluent):
    def settings(self, user: User) -> dict[str, Any]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "OAUTHBEARER",
            "oauth_cb": lambda _: (Path(user.password).read_text(), time.time() + 3600),
        }


class TokenKafkaPython(KafkaPython):
    def settings(self, user: User) -> dict[str, Any]:
        class Provider(AbstractTokenProvider):  # type: ignore[misc]  # it has no types
            def token(self) -> str:
                return Path(user.password).read_text()

        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": Provider(),
        }


class TokenAiokafka(Aiokafka):
    def settings(self, user: User) -> dict[str, Any]:
        class Provider(AioTokenProvider):
            async def token(self) -> str:
                return Path(user.password).read_text()

        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": Provider(),
        }


class TokenJava(Java):
    def java_options(self, user: User) -> list[str]:
        return files_for_java(Path(user.password).as_uri())

    def settings(self, user: User, password: str) -> dict[str, str]:
        handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": TOKEN_LOGIN,
            "sasl.login.callback.handler.class": handler,
            "sasl.oauthbearer.token.endpoint.url": Path(user.password).as_uri(),
        }

    def _properties(self, password: str) -> Path:
        return super()._properties("token")


CLIENTS: Final[dict[tuple[str, str], Any]] = {
    ("oncelog", "certificate"): CertifiedOncelog,
    ("confluent", "certificate"): CertifiedConfluent,
    ("kafka-python", "certificate"): CertifiedKafkaPython,
    ("aiokafka", "certificate"): CertifiedAiokafka,
    ("java", "certificate"): CertifiedJava,
    ("oncelog", "token"): TokenOncelog,
    ("confluent", "token"): TokenConfluent,
    ("kafka-python", "token"): TokenKafkaPython,
    ("aiokafka", "token"): TokenAiokafka,
    ("java", "token"): TokenJava,
}


def script(client: Any, user: User) -> dict[str, Any]:
    told: dict[str, Any] = {f"write {what}": client.write(user.of(what)) for what in ("mine", "other")}
    told["read mine"] = client.read(user.of("mine"))
    told["join other"] = client.join(user.of("other"), user.of("mine"))
    told["topics"] = client.topics()
    return told


@pytest.mark.parametrize("name", ["oncelog", "confluent", "kafka-python", "aiokafka", "java"])
def test_every_client_is_told_the_same_by_both_brokers(
    user: User, way: str, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name == "java":
        request.getfixturevalue("java")
    client = CLIENTS[name, way](user, tmp_path)
    try:
        assert script(client, user) == EXPECTED
    finally:
        client.close()


def test_a_token_that_has_expired_lets_nobody_in_on_either_broker(broker_kind: str, tmp_path: Path) -> None:
    broker = brokers.get(broker_kind, 2, SECURED)
    assert broker.tls_servers is not None
    for token in (authority().token(time.time() - 9000), brokers.Authority().token(time.time())):
        (tmp_path / "token").write_text(token)
        user = User(broker.tls_servers, "x", str(tmp_path / "token"))
        settings = {**TokenOncelog(user, tmp_path).settings(user), "default.api.timeout.ms": 120_000}
        with Admin(settings) as admin, pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
            admin.list_topics()
