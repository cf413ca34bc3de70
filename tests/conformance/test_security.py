"""The same script with five clients, as a user of SCRAM through TLS who may use what is called `mine`, on both brokers:
who is told what, for each call and each name.

`tests/conformance/scenarios/securing.py` has the answers themselves, byte for byte; here is what programs see of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka.errors
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka.admin import AclBindingFilter, AclOperation, AclPermissionType, AdminClient, ResourcePatternType
from confluent_kafka.admin import NewTopic as ConfluentNewTopic
from confluent_kafka.admin import ResourceType as ConfluentResource

import kafka
from oncelog.client import Admin, Consumer, KafkaError, Producer, TopicPartition
from oncelog.client.admin import Acl, Operation, Pattern, Permission, Resource, ScramMechanism, ScramUpsertion
from peers.kafka.java_client import JavaClient
from tests.conformance import brokers
from tests.conformance.brokers import SECURED, TLS
from tests.waiting import wait_until

CA: Final = str(TLS / "ca.pem")
MECHANISM: Final = "SCRAM-SHA-256"
OK, NO_TOPIC, NO_GROUP, NO_CLUSTER, NO_ID, NO_LOGIN = 0, 29, 30, 31, 53, 58
NOT_CONNECTED: Final = -1
"""The client says only that it reaches no broker."""
WAIT_S: Final = 120


@dataclass(frozen=True)
class User:
    servers: str
    name: str
    password: str
    """`name` begins the names of all that the script uses."""

    def of(self, what: str) -> str:
        return f"{self.name}-{what}"


EXPECTED: Final[dict[str, Any]] = {
    "write mine": OK,
    "write other": NO_TOPIC,
    "write missing": NO_TOPIC,
    "read mine": OK,
    "read other": NO_TOPIC,
    "join mine": OK,
    "join other": NO_GROUP,
    "transaction mine": OK,
    "transaction other": NO_ID,
    "create mine-new": OK,
    "create new": NO_TOPIC,
    "delete mine-new": OK,
    "delete other": NO_TOPIC,
    "delete missing": NO_TOPIC,
    "topics": ["mine"],
    "acls": NO_CLUSTER,
    "wrong password": NO_LOGIN,
}


@pytest.fixture
def user(broker_kind: str, unique: Callable[[str], str]) -> User:
    broker = brokers.get(broker_kind, 2, SECURED)
    assert broker.tls_servers is not None
    user = User(broker.tls_servers, unique("u"), "pencil")
    kinds = (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.create_topics([user.of("mine"), user.of("other")])
        admin.alter_user_scram_credentials([ScramUpsertion(user.name, ScramMechanism.SHA_256, user.password)])
        admin.create_acls(
            Acl(kind, user.of("mine"), Pattern.PREFIXED, f"User:{user.name}", "*", Operation.ALL, Permission.ALLOW)
            for kind in kinds
        )
    # Apache Kafka tells its broker of users and ACLs after it has answered.
    wait_until(lambda: sees_mine(user), "the user can log in and sees the topic")
    return user


def sees_mine(user: User) -> bool:
    with contextlib.suppress(KafkaError), Admin(ours(user)) as admin:
        return user.of("mine") in admin.list_topics()
    return False


def shown(user: User, topics: Any) -> list[str]:
    """Without those that tests before left behind."""
    start = user.of("")
    return sorted(name.removeprefix(start) for name in topics if name.startswith(start))


# Oncelog's client


def ours(user: User) -> dict[str, Any]:
    return {
        "bootstrap.servers": user.servers,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": CA,
        "sasl.mechanism": MECHANISM,
        "sasl.username": user.name,
        "sasl.password": user.password,
        "default.api.timeout.ms": WAIT_S * 1000,
    }


class Oncelog:
    def __init__(self, user: User, folder: Path) -> None:
        self._user = user
        self._settings = self.settings(user)

    def settings(self, user: User) -> dict[str, Any]:
        return ours(user)

    @staticmethod
    def code(call: Callable[[], Any]) -> int:
        try:
            call()
        except KafkaError as error:
            return int(error.code)
        return OK

    def write(self, topic: str) -> int:
        with Producer(self._settings) as producer:
            return self.code(lambda: producer.send(topic, b"x").result(WAIT_S))

    def read(self, topic: str) -> int:
        with Consumer({**self._settings, "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            return self.code(lambda: consumer.poll(WAIT_S * 1000))

    def join(self, group: str, topic: str) -> int:
        with Consumer({**self._settings, "group.id": group, "auto.offset.reset": "earliest"}) as consumer:
            consumer.subscribe([topic])
            return self.code(lambda: consumer.poll(WAIT_S * 1000))

    def transact(self, transactional_id: str) -> int:
        with Producer({**self._settings, "transactional.id": transactional_id}) as producer:
            return self.code(producer.init_transactions)

    def create(self, topic: str) -> int:
        with Admin(self._settings) as admin:
            return self.code(lambda: admin.create_topics([topic]))

    def delete(self, topic: str) -> int:
        with Admin(self._settings) as admin:
            return self.code(lambda: admin.delete_topics([topic]))

    def topics(self) -> list[str]:
        with Admin(self._settings) as admin:
            return shown(self._user, admin.list_topics())

    def acls(self) -> int:
        with Admin(self._settings) as admin:
            return self.code(admin.describe_acls)

    def log_in_wrongly(self) -> int:
        with Admin({**self._settings, "sasl.password": "wrong"}) as admin:
            return self.code(admin.list_topics)

    def close(self) -> None:
        """All is closed already."""


# librdkafka


class Confluent:
    def __init__(self, user: User, folder: Path) -> None:
        self._user = user
        self._settings = {"bootstrap.servers": user.servers, "ssl.ca.location": CA, "log_level": 0}
        self._settings |= self.settings(user)
        self._admin = AdminClient(self._settings)
        self._admin.poll(0)  # librdkafka asks for a token

    def settings(self, user: User) -> dict[str, Any]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": MECHANISM,
            "sasl.username": user.name,
            "sasl.password": user.password,
        }

    @staticmethod
    def code(call: Callable[[], Any]) -> int:
        try:
            call()
        except confluent_kafka.KafkaException as error:
            return int(error.args[0].code())
        return OK

    def write(self, topic: str) -> int:
        told: list[Any] = []
        producer = confluent_kafka.Producer(self._settings)
        producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error))
        assert producer.flush(WAIT_S) == 0
        return OK if told[0] is None else int(told[0].code())

    def _poll(self, consumer: Any) -> int:
        message = consumer.poll(WAIT_S)
        consumer.close()
        assert message is not None
        return OK if message.error() is None else int(message.error().code())

    def read(self, topic: str) -> int:
        return self.join(self._user.of("mine"), topic)

    def join(self, group: str, topic: str) -> int:
        own = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = confluent_kafka.Consumer({**self._settings, **own})
        consumer.subscribe([topic])
        return self._poll(consumer)

    def transact(self, transactional_id: str) -> int:
        producer = confluent_kafka.Producer({**self._settings, "transactional.id": transactional_id})
        return self.code(lambda: producer.init_transactions(WAIT_S))

    def create(self, topic: str) -> int:
        return self.code(lambda: self._admin.create_topics([ConfluentNewTopic(topic, 1, 1)])[topic].result(WAIT_S))

    def delete(self, topic: str) -> int:
        return self.code(lambda: self._admin.delete_topics([topic])[topic].result(WAIT_S))

    def topics(self) -> list[str]:
        return shown(self._user, self._admin.list_topics(timeout=WAIT_S).topics)

    def acls(self) -> int:
        every = AclBindingFilter(
            ConfluentResource.ANY,
            None,
            ResourcePatternType.ANY,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        return self.code(lambda: self._admin.describe_acls(every).result(WAIT_S))

    def log_in_wrongly(self) -> int:
        told: list[int] = []
        settings = {**self._settings, "sasl.password": "wrong", "error_cb": lambda error: told.append(error.code())}
        producer = confluent_kafka.Producer(settings)
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            producer.poll(0.1)
            if confluent_kafka.KafkaError._AUTHENTICATION in told:  # a connection may have timed out before
                return NO_LOGIN
        return OK

    def close(self) -> None:
        """The clients end with their objects."""


# kafka-python


class KafkaPython:
    def __init__(self, user: User, folder: Path) -> None:
        self._user = user
        self._settings: dict[str, Any] = {"bootstrap_servers": user.servers, "ssl_cafile": CA, **self.settings(user)}
        self._admin = kafka.KafkaAdminClient(**self._settings)

    def settings(self, user: User) -> dict[str, Any]:
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": MECHANISM,
            "sasl_plain_username": user.name,
            "sasl_plain_password": user.password,
        }

    @staticmethod
    def code(call: Callable[[], Any]) -> int:
        try:
            call()
        except kafka.errors.KafkaError as error:
            return int(getattr(error, "errno", NOT_CONNECTED))
        return OK

    def write(self, topic: str) -> int:
        producer = kafka.KafkaProducer(**self._settings, max_block_ms=WAIT_S * 1000)
        try:
            return self.code(lambda: producer.send(topic, b"x").get(WAIT_S))
        finally:
            producer.close(0)

    def _poll(self, consumer: Any, topic: str) -> int:
        """In one call, and not before it knows the topic: a poll that ends while it joins its group makes it forget
        what it is assigned, and a consumer that is closed then leaves a member behind that the next one waits for."""
        cluster = consumer._client.cluster
        try:
            # It logs that it may not read a topic, and would poll on.
            wait_until(lambda: topic in cluster.unauthorized_topics or topic in cluster.topics(), f"it knows {topic}")
            if topic in cluster.unauthorized_topics:
                return NO_TOPIC

            def poll() -> None:
                assert consumer.poll(WAIT_S * 1000), f"no record of {topic}"

            return self.code(poll)
        finally:
            consumer.close(autocommit=False)

    def read(self, topic: str) -> int:
        return self.join(self._user.of("mine"), topic)

    def join(self, group: str, topic: str) -> int:
        own = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        return self._poll(kafka.KafkaConsumer(topic, **self._settings, **own), topic)

    def transact(self, transactional_id: str) -> int:
        producer = kafka.KafkaProducer(**self._settings, transactional_id=transactional_id)
        try:
            return self.code(producer.init_transactions)
        finally:
            producer.close(0)

    def create(self, topic: str) -> int:
        return self.code(lambda: self._admin.create_topics([kafka.admin.NewTopic(topic, 1, 1)]))

    def delete(self, topic: str) -> int:
        return self.code(lambda: self._admin.delete_topics([topic]))

    def topics(self) -> list[str]:
        return shown(self._user, self._admin.list_topics())

    def acls(self) -> int:
        from kafka.admin import (
            ACLFilter,
            ACLOperation,
            ACLPermissionType,
            ACLResourcePatternType,
            ResourcePatternFilter,
        )
        from kafka.admin import ResourceType as KafkaResource

        pattern = ResourcePatternFilter(KafkaResource.ANY, None, ACLResourcePatternType.ANY)
        every = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern)
        return self.code(lambda: self._admin.describe_acls(every))

    def log_in_wrongly(self) -> int:
        wrong = {"sasl_plain_password": "wrong", "bootstrap_timeout_ms": 3_000}
        return self.code(lambda: kafka.KafkaAdminClient(**{**self._settings, **wrong}))

    def close(self) -> None:
        self._admin.close()


# aiokafka


class Aiokafka:
    def __init__(self, user: User, folder: Path) -> None:
        self._user = user
        trust = {"ssl_context": ssl.create_default_context(cafile=CA)}
        self._settings: dict[str, Any] = {"bootstrap_servers": user.servers, **trust, **self.settings(user)}

    def settings(self, user: User) -> dict[str, Any]:
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": MECHANISM,
            "sasl_plain_username": user.name,
            "sasl_plain_password": user.password,
        }

    def _run(self, new_client: Callable[[], Any], call: Callable[[Any], Any]) -> int:
        async def run() -> int:
            client = new_client()
            try:
                await client.start()
                await asyncio.wait_for(call(client), WAIT_S)
            except aiokafka.errors.KafkaError as error:
                return int(getattr(error, "errno", NOT_CONNECTED))
            finally:
                await (client.close() if hasattr(client, "close") else client.stop())
            return OK

        return asyncio.run(run())

    def write(self, topic: str) -> int:
        return self._run(
            lambda: aiokafka.AIOKafkaProducer(**self._settings), lambda producer: producer.send_and_wait(topic, b"x")
        )

    def read(self, topic: str) -> int:
        def new() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(**self._settings, auto_offset_reset="earliest")
            consumer.assign([aiokafka.TopicPartition(topic, 0)])
            return consumer

        return self._run(new, lambda consumer: consumer.getone())

    def join(self, group: str, topic: str) -> int:
        def new() -> Any:
            return aiokafka.AIOKafkaConsumer(topic, **self._settings, group_id=group, auto_offset_reset="earliest")

        return self._run(new, lambda consumer: consumer.getone())

    def transact(self, transactional_id: str) -> int:
        async def nothing(_: Any) -> None:
            """The start has done it."""

        return self._run(
            lambda: aiokafka.AIOKafkaProducer(**self._settings, transactional_id=transactional_id), nothing
        )

    def _manage(self, call: Callable[[Any], Any]) -> int:
        async def first_code(admin: Any) -> None:
            response = await call(admin)
            for _, code, *_ in getattr(response, "topic_errors", None) or getattr(response, "topic_error_codes", ()):
                if code:
                    raise aiokafka.errors.for_code(code)

        return self._run(lambda: AIOKafkaAdminClient(**self._settings), first_code)

    def create(self, topic: str) -> int:
        return self._manage(lambda admin: admin.create_topics([AioNewTopic(topic, 1, 1)]))

    def delete(self, topic: str) -> int:
        return self._manage(lambda admin: admin.delete_topics([topic]))

    def topics(self) -> list[str]:
        found: list[str] = []

        async def keep(admin: Any) -> None:
            found.extend(await admin.list_topics())

        self._run(lambda: AIOKafkaAdminClient(**self._settings), keep)
        return shown(self._user, found)

    def acls(self) -> int:
        """It has no call for ACLs."""
        return NO_CLUSTER

    def log_in_wrongly(self) -> int:
        async def nothing(_: Any) -> None:
            """The start has failed."""

        return self._run(
            lambda: aiokafka.AIOKafkaProducer(**{**self._settings, "sasl_plain_password": "wrong"}), nothing
        )

    def close(self) -> None:
        """All is closed already."""


# Java

JAVA_CODES: Final = {
    "TopicAuthorizationException": NO_TOPIC,
    "GroupAuthorizationException": NO_GROUP,
    "ClusterAuthorizationException": NO_CLUSTER,
    "TransactionalIdAuthorizationException": NO_ID,
    "SaslAuthenticationException": NO_LOGIN,
}


class Java:
    def __init__(self, user: User, folder: Path) -> None:
        self._user = user
        self._folder = folder
        self._java = JavaClient(user.servers, settings=self._properties(user.password), options=self.java_options(user))

    def java_options(self, user: User) -> list[str]:
        return []

    def settings(self, user: User, password: str) -> dict[str, str]:
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": f'{module} required username="{user.name}" password="{password}";',
        }

    def _properties(self, password: str) -> Path:
        file = self._folder / f"{password}.properties"
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": CA}
        lines = {**trust, **self.settings(self._user, password)}
        file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return file

    @staticmethod
    def code(answer: dict[str, Any]) -> int:
        if answer["ok"]:
            return OK
        return JAVA_CODES.get(answer["exception"]) or JAVA_CODES.get(answer["cause"] or "") or -1

    def write(self, topic: str) -> int:
        self._java.ok("producer p -")
        return self.code(self._java.run(f"send p {topic} 0 - x"))

    def read(self, topic: str) -> int:
        return self.join(self._user.of("mine"), topic)

    def join(self, group: str, topic: str) -> int:
        self._java.ok(f"consumer c {group} {topic}")
        return self.code(self._java.run(f"poll c {WAIT_S * 1000} 1"))

    def transact(self, transactional_id: str) -> int:
        self._java.ok(f"producer t {transactional_id}")
        return self.code(self._java.run("init t"))

    def create(self, topic: str) -> int:
        return self.code(self._java.run(f"create {topic}"))

    def delete(self, topic: str) -> int:
        return self.code(self._java.run(f"delete {topic}"))

    def topics(self) -> list[str]:
        return shown(self._user, self._java.ok("topics")["topics"])

    def acls(self) -> int:
        return self.code(self._java.run("acls"))

    def log_in_wrongly(self) -> int:
        self._java.ok(f"producer w - @{self._properties('wrong')}")
        return self.code(self._java.run(f"send w {self._user.of('mine')} 0 - x"))

    def close(self) -> None:
        self._java.close()


def script(client: Any, user: User) -> dict[str, Any]:
    """In an order in which each finds what it needs: what is read was written."""
    told = {f"write {what}": client.write(user.of(what)) for what in ("mine", "other", "missing")}
    told |= {f"read {what}": client.read(user.of(what)) for what in ("mine", "other")}
    told |= {f"join {what}": client.join(user.of(what), user.of("mine")) for what in ("mine", "other")}
    told |= {f"transaction {what}": client.transact(user.of(what)) for what in ("mine", "other")}
    told["topics"] = client.topics()
    told |= {f"create {what}": client.create(user.of(what)) for what in ("mine-new", "new")}
    told |= {f"delete {what}": client.delete(user.of(what)) for what in ("mine-new", "other", "missing")}
    told["acls"] = client.acls()
    told["wrong password"] = client.log_in_wrongly()
    return told


CLIENTS: Final = {"oncelog": Oncelog, "confluent": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka}
OWN_WAYS: Final[dict[str, dict[str, Any]]] = {
    "aiokafka": {"wrong password": NOT_CONNECTED},
    "kafka-python": {"wrong password": NOT_CONNECTED},
    "confluent": {"acls": OK},
}
"""What a client makes of an answer, where that is not its code: librdkafka takes a refusal for an empty list."""


@pytest.mark.parametrize("name", [*CLIENTS, "java"])
def test_every_client_is_told_the_same_by_both_brokers(
    user: User, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name == "java":
        request.getfixturevalue("java")
    client = CLIENTS.get(name, Java)(user, tmp_path)
    try:
        told = script(client, user)
    finally:
        client.close()
    assert told == {**EXPECTED, **OWN_WAYS.get(name, {})}


@pytest.mark.parametrize(
    ("certificate", "principal"),
    [
        ("alice.pem", "User:OPS-ALICE"),
        (
            "odd.pem",
            'User:O=Ünï\\;\\<\\>\\"y,1.2.840.113549.1.9.1=#160f626f62406578616d706c652e636f6d,CN=\\ \\#a\\=b\\+c',
        ),
    ],
)
def test_a_certificate_is_the_same_user_on_both_brokers(
    broker_kind: str, certificate: str, principal: str, unique: Callable[[str], str]
) -> None:
    broker = brokers.get(broker_kind, 2, SECURED)
    topic = unique("certified")
    settings = {
        "bootstrap.servers": broker.certificate_servers,
        "security.protocol": "SSL",
        "ssl.truststore.location": CA,
        "ssl.keystore.location": str(TLS / certificate),
    }
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin, Admin(settings) as theirs:
        admin.create_topics([topic])
        assert topic not in theirs.list_topics()
        admin.create_acls(
            [Acl(Resource.TOPIC, topic, Pattern.LITERAL, principal, "*", Operation.DESCRIBE, Permission.ALLOW)]
        )
        wait_until(lambda: topic in theirs.list_topics(), f"the certificate is {principal}")
