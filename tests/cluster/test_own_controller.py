"""Brokers under Oncelog's own controller (100): Java's (1) and Oncelog's (2, 3) register, lead, follow, fail over."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from peers.kafka.dump import dump_files
from peers.kafka.jars import run_java
from tests.cluster.clusters import PATIENT, Cluster, log_bytes, running_cluster, send
from tests.conformance.conftest import require
from tests.waiting import wait_until

WITH_JAVA = os.environ.get("ONCELOG_CLUSTER_TESTS") == "all"
"""`make test` has two Oncelog brokers."""
WITH_ALL = pytest.mark.skipif(not WITH_JAVA, reason="takes minutes: make test-cluster")
FIRST, SECOND = (1, 2) if WITH_JAVA else (2, 3)
BROKERS = [1, 2, 3] if WITH_JAVA else [2, 3]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if WITH_JAVA:
        require("kafka")
    with running_cluster(tmp_path_factory.mktemp("own")) as started:
        calm = {} if WITH_JAVA else PATIENT  # the long form kills a broker
        started.start_own_controller(**calm)
        for node_id in (2, 3):
            started.start_oncelog(node_id, **calm)
        if WITH_JAVA:
            started.start_java(1)
        yield started


def assert_equal_replicas(cluster: Cluster, topic: str, *node_ids: int) -> None:
    def contents() -> set[bytes]:
        return {log_bytes(cluster, node_id, f"{topic}-0") for node_id in node_ids}

    wait_until(lambda: len(contents()) == 1 and b"" not in contents())


def test_brokers_register_and_all_tell_the_same(cluster: Cluster) -> None:
    described = cluster.admin.describe_cluster().result(120)
    assert sorted(node.id for node in described.nodes) == BROKERS
    cluster.create_topic("told", [FIRST, SECOND], [SECOND, FIRST])
    for node_id in BROKERS:
        where = cluster.nodes[node_id].bootstrap_servers
        wait_until(lambda where=where: cluster.partition("told", 1, on=where) is not None)  # type: ignore[misc]
        found = [cluster.partition("told", index, on=where) for index in range(2)]
        assert [(each.leader, each.replicas) for each in found if each is not None] == [
            (FIRST, [FIRST, SECOND]),
            (SECOND, [SECOND, FIRST]),
        ]


def test_acknowledged_records_are_on_all_replicas_whoever_leads(cluster: Cluster) -> None:
    values = [f"value {number}" for number in range(300)]
    for leader in BROKERS:
        topic, others = f"replicated-{leader}", [each for each in BROKERS if each != leader]
        cluster.create_topic(topic, [leader, *others], min_insync_replicas="2")
        send(cluster.producer(enable_idempotence=True), topic, values)
        assert_equal_replicas(cluster, topic, *BROKERS)
        assert [value.decode() for value in cluster.read(topic, 300, group=f"group-{leader}")] == values


@WITH_ALL
def test_transactions_over_leaders_of_both_kinds(cluster: Cluster) -> None:
    for leader in (FIRST, SECOND):
        cluster.create_topic(f"transactional-{leader}", [leader, FIRST + SECOND - leader])
    committed = []
    for number in range(4):
        producer = cluster.producer(transactional_id=f"transaction {number}")
        producer.init_transactions(180)
        for outcome in ("commit", "abort"):
            producer.begin_transaction()
            for leader in (FIRST, SECOND):
                producer.produce(f"transactional-{leader}", f"{number} {outcome}".encode(), partition=0)
            producer.commit_transaction(180) if outcome == "commit" else producer.abort_transaction(180)
        committed.append(f"{number} commit")
    for leader in (FIRST, SECOND):
        found = cluster.read(f"transactional-{leader}", len(committed), group=f"transactional-{leader}")
        assert [value.decode() for value in found] == committed


@WITH_ALL
def test_a_killed_broker_is_fenced_and_comes_back_in_sync(cluster: Cluster) -> None:
    cluster.create_topic("failing", [SECOND, FIRST])
    producer = cluster.producer()
    send(producer, "failing", ["before"])
    cluster.oncelog[SECOND].kill()
    cluster.wait_for_leader("failing", FIRST)
    send(producer, "failing", ["while it was away"])
    cluster.oncelog[SECOND].start()
    cluster.wait_for_isr("failing", FIRST, SECOND)
    assert_equal_replicas(cluster, "failing", FIRST, SECOND)


def test_the_controller_is_killed_and_goes_on_from_its_files(cluster: Cluster) -> None:
    controller = cluster.own_controller
    assert controller is not None
    controller.kill()
    send(cluster.producer(), "told", ["brokers serve without a controller"])
    controller.start()
    cluster.create_topic("afterwards", [FIRST, SECOND])
    send(cluster.producer(), "afterwards", ["made by the same controller, in its next epoch"])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    assert {"told", "afterwards"} <= admin.list_topics(timeout=60).topics.keys()


@WITH_ALL
def test_kafkas_own_tools_ask_the_controller(cluster: Cluster) -> None:
    def run(tool: str, *arguments: str) -> str:
        assert cluster.own_controller is not None
        command = ["--bootstrap-controller", cluster.own_controller.bootstrap_servers, *arguments]
        command = [*command[2:], *command[:2]] if tool.endswith("ClusterTool") else command
        done = run_java(tool, *command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    broker_100 = ("--entity-type", "brokers", "--entity-name", "100")
    run("kafka.admin.ConfigCommand", *broker_100, "--alter", "--add-config", "message.max.bytes=5000")
    assert "message.max.bytes=5000" in run("kafka.admin.ConfigCommand", *broker_100, "--describe")
    assert "Cluster ID: " in run("org.apache.kafka.tools.ClusterTool", "cluster-id")
    (endpoint,) = run("org.apache.kafka.tools.ClusterTool", "list-endpoints").splitlines()[1:2]
    assert endpoint.split()[:2] == ["100", "127.0.0.1"]


@WITH_ALL
def test_a_controlled_shutdown_moves_leadership(cluster: Cluster) -> None:
    """The last test: the others need all brokers."""
    cluster.create_topic("moved", [SECOND, FIRST])
    send(cluster.producer(), "moved", ["before"])
    assert cluster.oncelog[SECOND].stop() == 0
    cluster.wait_for_leader("moved", FIRST)


@WITH_ALL
def test_kafkas_own_tool_reads_the_log_of_the_controller(cluster: Cluster) -> None:
    assert cluster.own_controller is not None
    files = sorted((cluster.own_controller.data_dir / "__cluster_metadata-0").glob("*.log"))
    dump = dump_files(files, "--cluster-metadata-decoder")
    assert dump.complaints() == []
    assert '"type":"REGISTER_BROKER_RECORD"' in dump.stdout
