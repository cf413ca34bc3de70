"""A folder of Apache Kafka with users, ACLs and quotas, taken over by `oncelog serve`: its users log in as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.client import Admin, Consumer, KafkaError, TopicPartition
from oncelog.core.errors import ErrorCode
from oncelog.testing.broker import BrokerProcess
from peers.kafka.kafka import free_port
from tests.data import kafka

CONTENTS = kafka.contents(kafka.SECURED)
MECHANISMS = {"alice": "SCRAM-SHA-256", "bob": "SCRAM-SHA-512"}
WAIT_MS = 20_000


class Adopted:
    def __init__(self, folder: Path) -> None:
        self.sasl_port = free_port()
        settings = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS.values()),
            "connection.failed.authentication.delay.ms": "1",
        }
        listen = f"PLAINTEXT://127.0.0.1:{free_port()},SASL_PLAINTEXT://127.0.0.1:{self.sasl_port}"
        self.broker = BrokerProcess(folder, settings, arguments=["--listen", listen])
        self.broker.start()

    def of(self, user: str, password: str | None = None) -> dict[str, Any]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.sasl_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": MECHANISMS[user],
            "sasl.username": user,
            "sasl.password": password or CONTENTS["passwords"][user],
            "default.api.timeout.ms": WAIT_MS,
        }

    def read(self, user: str, topic: str) -> list[bytes | None]:
        with Consumer({**self.of(user), "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            found: list[bytes | None] = []
            while len(found) < 3:
                records = consumer.poll(WAIT_MS)
                assert records, "nothing came"
                found += [record.key for record in records]
            return found


@pytest.fixture
def adopted(kafka_data: Callable[[str], Path]) -> Iterator[Adopted]:
    adopted = Adopted(kafka_data(kafka.SECURED))
    yield adopted
    adopted.broker.stop()


def check(adopted: Adopted) -> None:
    assert adopted.read("alice", "orders") == [b"orders-0", b"orders-1", b"orders-2"]
    assert adopted.read("bob", "orders") == [b"orders-0", b"orders-1", b"orders-2"]
    for user, topic in (("alice", "other"), ("bob", "other")):
        with pytest.raises(KafkaError) as caught:
            adopted.read(user, topic)
        assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with Admin(adopted.of("alice", "looking-glass")) as admin, pytest.raises(KafkaError) as caught:
        admin.list_topics()
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    with Admin({"bootstrap.servers": adopted.broker.bootstrap_servers}) as admin:
        assert sorted([*acl] for acl in admin.describe_acls()) == CONTENTS["acls"]
        quotas = [[quota.entity, quota.quotas] for quota in admin.describe_client_quotas()]
        assert sorted(quotas, key=str) == sorted(CONTENTS["quotas"], key=str)
        assert {user: len(found) for user, found in admin.describe_user_scram_credentials().items()} == {
            "alice": 1,
            "bob": 1,
        }


def test_users_acls_and_quotas_of_kafka_hold_from_the_first_start_on(adopted: Adopted) -> None:
    check(adopted)
    adopted.broker.kill()
    adopted.broker.start()
    check(adopted)
