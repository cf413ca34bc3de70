"""An Oncelog broker (2) beside one of Apache Kafka (1), which is the controller as well: they follow each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from peers.kafka.aborted import by_file
from peers.kafka.dump import dump_files
from tests.cluster.clusters import Cluster, log_bytes, running_cluster, send
from tests.conformance.conftest import require
from tests.waiting import wait_until

JAVA, ONCELOG = 1, 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("kafka")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as started:
        started.start_controller(node_id=JAVA)
        started.start_oncelog(ONCELOG, broker_rack="r2")
        yield started


def other(node_id: int) -> int:
    return JAVA + ONCELOG - node_id


def address(cluster: Cluster, node_id: int) -> str:
    java = cluster.java.get(node_id)
    return java.bootstrap_servers if java is not None else cluster.oncelog[node_id].bootstrap_servers


def assert_equal_replicas(cluster: Cluster, topic: str) -> None:
    partition = f"{topic}-0"
    wait_until(lambda: log_bytes(cluster, JAVA, partition) == log_bytes(cluster, ONCELOG, partition) != b"")


def test_both_brokers_tell_the_same_of_the_cluster(cluster: Cluster) -> None:
    cluster.create_topic("told", [JAVA, ONCELOG], [ONCELOG, JAVA])
    for node_id in (JAVA, ONCELOG):
        where = address(cluster, node_id)
        wait_until(lambda where=where: cluster.partition("told", 1, on=where) is not None)  # type: ignore[misc]
        found = [cluster.partition("told", index, on=where) for index in range(2)]
        assert [(each.leader, each.replicas, sorted(each.isrs)) for each in found if each is not None] == [
            (JAVA, [JAVA, ONCELOG], [JAVA, ONCELOG]),
            (ONCELOG, [ONCELOG, JAVA], [JAVA, ONCELOG]),
        ]
        described = cluster.admin.describe_cluster().result(20)
        assert sorted(node.id for node in described.nodes) == [JAVA, ONCELOG]


def test_acknowledged_records_are_on_both_replicas_of_either_leader(cluster: Cluster) -> None:
    values = [f"value {number}" for number in range(500)]
    files = []
    for leader in (JAVA, ONCELOG):
        topic = f"replicated-{leader}"
        cluster.create_topic(topic, [leader, other(leader)], min_insync_replicas="2")
        send(cluster.producer(enable_idempotence=True), topic, values)
        assert_equal_replicas(cluster, topic)
        assert [value.decode() for value in cluster.read(topic, 500, group=f"group-{leader}")] == values
        files += [next((cluster.data_dir(node_id) / f"{topic}-0").glob("*.log")) for node_id in (JAVA, ONCELOG)]
    dump = dump_files(files, "--deep-iteration")
    assert dump.complaints() == []
    batches = [[line for line in by_file(dump.stdout)[file] if line.startswith("baseOffset")] for file in files]
    assert batches[0] == batches[1] != []
    assert batches[2] == batches[3] != []


def test_transactions_of_either_coordinator_end_on_both_leaders(cluster: Cluster) -> None:
    """Four partitions of __transaction_state, each broker leads two of them."""
    for leader in (JAVA, ONCELOG):
        cluster.create_topic(f"transactional-{leader}", [leader, other(leader)])
    committed = []
    for number in range(8):
        producer = cluster.producer(transactional_id=f"transaction {number}")
        producer.init_transactions(60)
        for outcome in ("commit", "abort"):
            producer.begin_transaction()
            value = f"{number} {outcome}"
            for leader in (JAVA, ONCELOG):
                producer.produce(f"transactional-{leader}", value.encode(), partition=0)
            _end(producer, outcome)
            committed += [value] if outcome == "commit" else []
    leaders = {cluster.partition("__transaction_state", index) for index in range(4)}
    assert {found.leader for found in leaders if found is not None} == {JAVA, ONCELOG}
    for leader in (JAVA, ONCELOG):
        topic = f"transactional-{leader}"
        found = cluster.read(topic, len(committed), group=f"transactional-{leader}")
        assert [value.decode() for value in found] == committed
        assert_equal_replicas(cluster, topic)


def _end(producer: Producer, outcome: str) -> None:
    if outcome == "commit":
        producer.commit_transaction(60)
    else:
        producer.abort_transaction(60)


def test_a_broker_with_a_taken_id_or_of_another_cluster_is_refused_in_a_sentence(cluster: Cluster) -> None:
    taken = cluster.new_oncelog(ONCELOG, "another", initial_broker_registration_timeout_ms=5000)
    with pytest.raises(RuntimeError, match=f"broker id {ONCELOG} is taken by another process.*change node.id"):
        taken.start(timeout_s=60)
    stranger = cluster.new_oncelog(7, cluster_id="AAAAAAAAAAAAAAAAAAAAAA")
    with pytest.raises(RuntimeError, match=r"is of another cluster than this broker's\s+data folder"):
        stranger.start(timeout_s=60)


def test_a_controlled_shutdown_moves_leadership_and_a_restart_comes_back_in_sync(cluster: Cluster) -> None:
    """The last test: the others need both brokers."""
    cluster.create_topic("moved", [ONCELOG, JAVA])
    producer = cluster.producer()
    send(producer, "moved", ["before"])
    assert cluster.oncelog[ONCELOG].stop() == 0
    cluster.wait_for_leader("moved", JAVA)
    send(producer, "moved", ["while it was away"])
    cluster.oncelog[ONCELOG].start(timeout_s=90)
    cluster.wait_for_isr("moved", JAVA, ONCELOG)
    assert_equal_replicas(cluster, "moved")
