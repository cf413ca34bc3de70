"""An Oncelog broker (2) beside one of Apache Kafka (1), which is the controller as well: they follow each other."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from oncelog.cli.main import cli
from oncelog.client import Admin, TopicPartition
from oncelog.client import Producer as OwnProducer
from oncelog.client.admin_cluster import QuorumDescription
from peers.kafka.aborted import by_file
from peers.kafka.dump import dump_files
from peers.kafka.kafka import CLUSTER_ID
from tests.cluster.clusters import PATIENT, Cluster, log_bytes, running_cluster, send
from tests.conformance.conftest import require
from tests.conformance.wire import Wire
from tests.waiting import wait_until

JAVA, ONCELOG = 1, 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("kafka")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as started:
        started.start_controller(node_id=JAVA, properties=PATIENT)
        started.start_oncelog(ONCELOG, broker_rack="r2", **PATIENT)
        yield started


def other(node_id: int) -> int:
    return JAVA + ONCELOG - node_id


def assert_equal_replicas(cluster: Cluster, topic: str) -> None:
    partition = f"{topic}-0"
    wait_until(lambda: log_bytes(cluster, JAVA, partition) == log_bytes(cluster, ONCELOG, partition) != b"")


def test_both_brokers_tell_the_same_of_the_cluster(cluster: Cluster) -> None:
    cluster.create_topic("told", [JAVA, ONCELOG], [ONCELOG, JAVA])
    for node_id in (JAVA, ONCELOG):
        where = cluster.nodes[node_id].bootstrap_servers
        wait_until(lambda where=where: cluster.partition("told", 1, on=where) is not None)  # type: ignore[misc]
        found = [cluster.partition("told", index, on=where) for index in range(2)]
        assert [(each.leader, each.replicas, sorted(each.isrs)) for each in found if each is not None] == [
            (JAVA, [JAVA, ONCELOG], [JAVA, ONCELOG]),
            (ONCELOG, [ONCELOG, JAVA], [JAVA, ONCELOG]),
        ]
        described = cluster.admin.describe_cluster().result(120)
        assert sorted(node.id for node in described.nodes) == [JAVA, ONCELOG]


def test_a_description_of_the_cluster_names_its_controller_and_both_brokers(cluster: Cluster) -> None:
    cluster.create_topic("described", [JAVA, ONCELOG])
    for node_id in (JAVA, ONCELOG):
        where = cluster.nodes[node_id].bootstrap_servers
        result = CliRunner().invoke(cli, ["cluster", "describe", "-b", where, "-o", "json", "--timeout", "120s"])
        described = json.loads(result.stdout)
        assert (described["quorum"]["leader"], described["quorum"]["voters"]) == (JAVA, [JAVA])
        assert [(one["broker"], one["rack"]) for one in described["brokers"]] == [(JAVA, None), (ONCELOG, "r2")]
        assert (described["without_leader"], described["under_replicated"]) == ([], [])


def test_the_broker_is_an_observer_of_the_quorum(cluster: Cluster) -> None:
    """So an operator sees how far it has read the metadata log."""
    for node_id in (JAVA, ONCELOG):
        with Admin({"bootstrap.servers": cluster.nodes[node_id].bootstrap_servers}) as admin:
            wait_until(lambda admin=admin: _is_observer(admin.describe_quorum()))  # type: ignore[misc]


def test_changes_of_the_voters_are_passed_on_to_the_controller(cluster: Cluster) -> None:
    stranger = {"voter_id": 77, "voter_directory_id": "00000000-0000-0000-0000-000000000077", "cluster_id": CLUSTER_ID}
    answers = []
    for node_id in (JAVA, ONCELOG):
        with contextlib.closing(Wire(cluster.nodes[node_id].bootstrap_servers)) as wire:
            answers.append(wire.call("remove_raft_voter", 0, **stranger))
    assert answers[0] == answers[1]
    assert answers[0]["error_code"] != 0


def _is_observer(quorum: QuorumDescription) -> bool:
    observers = {replica.node_id: replica.end_offset for replica in quorum.observers}
    return ONCELOG in observers and observers[ONCELOG] >= quorum.high_watermark


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
        producer.init_transactions(180)
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


def test_transactions_of_the_newer_protocol_take_offsets_along(cluster: Cluster) -> None:
    """Each end bumps the epoch (TV2); leaders add partitions with the coordinator themselves, wherever it is."""
    for leader in (JAVA, ONCELOG):
        cluster.create_topic(f"newer-{leader}", [leader, other(leader)])
    committed = []
    position = TopicPartition("newer-1", 0)
    for number in range(6):
        config = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"newer {number}"}
        with OwnProducer(config) as producer:
            producer.init_transactions()
            for outcome in ("commit", "abort"):
                producer.begin_transaction()
                value = f"{number} {outcome}"
                for leader in (JAVA, ONCELOG):
                    producer.send(f"newer-{leader}", value)
                offsets = {position: len(committed) + (1 if outcome == "commit" else 1000)}
                producer.send_offsets_to_transaction(offsets, f"newer {number}")
                if outcome == "commit":
                    producer.commit_transaction()
                    committed.append(value)
                else:
                    producer.abort_transaction()
    for leader in (JAVA, ONCELOG):
        found = cluster.read(f"newer-{leader}", len(committed), group=f"newer-{leader}")
        assert [value.decode() for value in found] == committed
        assert_equal_replicas(cluster, f"newer-{leader}")
    with Admin({"bootstrap.servers": cluster.bootstrap_servers}) as admin:
        assert admin.describe_cluster().features["transaction.version"] == 2
        told = [admin.group_offsets(f"newer {number}")[position].offset for number in range(6)]
    assert told == [1, 2, 3, 4, 5, 6]


def _end(producer: Producer, outcome: str) -> None:
    if outcome == "commit":
        producer.commit_transaction(180)
    else:
        producer.abort_transaction(180)


def test_a_broker_with_a_taken_id_or_of_another_cluster_is_refused_in_a_sentence(cluster: Cluster) -> None:
    taken = cluster.new_oncelog(ONCELOG, "another", initial_broker_registration_timeout_ms=15_000)
    with pytest.raises(RuntimeError, match=f"broker id {ONCELOG} is taken by another process.*change node.id"):
        taken.start()
    stranger = cluster.new_oncelog(7, cluster_id="AAAAAAAAAAAAAAAAAAAAAA")
    with pytest.raises(RuntimeError, match=r"is of another cluster than this broker's\s+data folder"):
        stranger.start()


def test_a_controlled_shutdown_moves_leadership_and_a_restart_comes_back_in_sync(cluster: Cluster) -> None:
    """The last test: the others need both brokers."""
    cluster.create_topic("moved", [ONCELOG, JAVA])
    producer = cluster.producer()
    send(producer, "moved", ["before"])
    assert cluster.oncelog[ONCELOG].stop() == 0
    cluster.wait_for_leader("moved", JAVA)
    send(producer, "moved", ["while it was away"])
    cluster.oncelog[ONCELOG].start()
    cluster.wait_for_isr("moved", JAVA, ONCELOG)
    assert_equal_replicas(cluster, "moved")
