"""Users, ACLs and quotas of a cluster count on Java brokers and on Oncelog brokers, whoever was asked to make them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from oncelog.client import Admin, KafkaError, Producer
from oncelog.client.admin import (
    Acl,
    ClientQuotas,
    Operation,
    Pattern,
    Permission,
    Resource,
    ScramMechanism,
    ScramUpsertion,
)
from oncelog.core.broker_config import STANDARD_AUTHORIZER
from oncelog.core.errors import ErrorCode
from peers.kafka.kafka import free_port
from tests.cluster.clusters import Cluster, running_cluster
from tests.conformance.conftest import require
from tests.waiting import wait_until

JAVA, ONCELOG = 1, 2
CLUSTER_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_ACLS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
_PORT = free_port()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("kafka")
    with running_cluster(tmp_path_factory.mktemp("acls")) as started:
        started.start_controller(node_id=JAVA, properties=_ACLS)
        listen = f"PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:{_PORT}"
        login = {
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": (
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
            ),
        }
        started.start_oncelog(ONCELOG, listen=listen, **_ACLS, **login)
        yield started


def settings_of(user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{_PORT}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": "pencil",
        "default.api.timeout.ms": 60_000,
    }


def write(user: str, topic: str) -> ErrorCode:
    try:
        with Producer(settings_of(user)) as producer:
            producer.send(topic, b"x").result(120)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


@pytest.mark.parametrize("made_on", [JAVA, ONCELOG])
def test_users_acls_and_quotas_count_on_every_broker(cluster: Cluster, made_on: int) -> None:
    user, mine, other = f"user-{made_on}", f"mine-{made_on}", f"other-{made_on}"
    cluster.create_topic(mine, [ONCELOG])
    cluster.create_topic(other, [ONCELOG])
    servers = {JAVA: cluster.java[JAVA].bootstrap_servers, ONCELOG: cluster.oncelog[ONCELOG].bootstrap_servers}
    acl = Acl(Resource.TOPIC, mine, Pattern.LITERAL, f"User:{user}", "*", Operation.WRITE, Permission.ALLOW)
    quotas = ClientQuotas({"user": user}, {"producer_byte_rate": 1e9})
    with Admin({"bootstrap.servers": servers[made_on]}) as admin:
        admin.alter_user_scram_credentials([ScramUpsertion(user, ScramMechanism.SHA_256, "pencil")])
        admin.create_acls([acl])
        admin.alter_client_quotas(*quotas)
    for asked in servers.values():
        with Admin({"bootstrap.servers": asked}) as admin:
            wait_until(lambda admin=admin: acl in admin.describe_acls())
            wait_until(lambda admin=admin: user in admin.describe_user_scram_credentials())
            wait_until(lambda admin=admin: quotas in admin.describe_client_quotas({"user": user}))
    assert write(user, mine) is ErrorCode.NONE
    assert write(user, other) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with Admin({"bootstrap.servers": servers[made_on]}) as admin:
        admin.create_acls([acl._replace(permission=Permission.DENY)])
    # Who may write to no topic gets no producer id.
    wait_until(lambda: write(user, mine) is CLUSTER_REFUSED)


def test_a_user_may_not_do_through_a_broker_what_the_controller_would_refuse_it(cluster: Cluster) -> None:
    with Admin({"bootstrap.servers": cluster.java[JAVA].bootstrap_servers}) as admin:
        admin.alter_user_scram_credentials([ScramUpsertion("eve", ScramMechanism.SHA_256, "pencil")])
    with Admin({"bootstrap.servers": cluster.oncelog[ONCELOG].bootstrap_servers}) as admin:
        wait_until(lambda: "eve" in admin.describe_user_scram_credentials())
    with Admin(settings_of("eve")) as admin:
        for refused, code in [
            (lambda: admin.create_topics(["eves"]), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            (lambda: admin.alter_client_quotas({"user": "eve"}, {"request_percentage": 99.0}), CLUSTER_REFUSED),
            (
                lambda: admin.alter_user_scram_credentials([ScramUpsertion("bob", ScramMechanism.SHA_256, "x")]),
                CLUSTER_REFUSED,
            ),
        ]:
            with pytest.raises(KafkaError) as caught:
                refused()
            assert caught.value.code is code
