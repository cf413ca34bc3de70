"""What operators do to a cluster with an Oncelog broker (2), a Java one (1) and a second Oncelog broker (3)."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType

from oncelog.cli.main import cli
from peers.kafka.jars import run_java
from tests.cluster.clusters import Cluster, log_bytes, running_cluster, send
from tests.conformance.conftest import require
from tests.waiting import wait_until

CONTROLLER, JAVA, ONCELOG, SECOND = 9, 1, 2, 3
SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": "2000"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("kafka")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as started:
        started.start_controller(node_id=CONTROLLER, roles="controller", properties=SNAPSHOTS)
        started.start_java(JAVA)
        started.start_oncelog(ONCELOG)
        started.create_topic("early", [ONCELOG, JAVA])
        # By now there is a snapshot, from which the third one learns what was before it.
        metadata = started.folder / f"kafka-{CONTROLLER}" / "data" / "__cluster_metadata-0"
        wait_until(lambda: list(metadata.glob("*.checkpoint")))
        started.start_oncelog(SECOND)
        yield started


def equal_on(cluster: Cluster, partition: str, *nodes: int) -> None:
    wait_until(lambda: len({log_bytes(cluster, node, partition) for node in nodes}) == 1)


def test_a_broker_that_begins_with_a_snapshot_knows_everything(cluster: Cluster) -> None:
    found = cluster.partition("early", on=cluster.oncelog[SECOND].bootstrap_servers)
    assert found is not None
    assert (found.leader, found.replicas) == (ONCELOG, [ONCELOG, JAVA])


def test_two_oncelog_brokers_follow_each_other(cluster: Cluster) -> None:
    cluster.create_topic("twins", [ONCELOG, SECOND], [SECOND, ONCELOG], min_insync_replicas="2")
    producer = cluster.producer()
    for index in range(2):
        send(producer, "twins", [str(number) for number in range(200)], partition=index)
        equal_on(cluster, f"twins-{index}", ONCELOG, SECOND)


def test_three_replicas_of_both_kinds(cluster: Cluster) -> None:
    cluster.create_topic("three", [ONCELOG, JAVA, SECOND], min_insync_replicas="3")
    send(cluster.producer(), "three", [str(number) for number in range(200)])
    equal_on(cluster, "three-0", JAVA, ONCELOG, SECOND)


def reassign(cluster: Cluster, folder: Path, topic: str, replicas: list[int]) -> None:
    plan = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": replicas}]}
    file = folder / "plan.json"
    file.write_text(json.dumps(plan))
    through = cluster.oncelog[ONCELOG].bootstrap_servers
    run = run_java(
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        *("--bootstrap-server", through, "--reassignment-json-file", str(file), "--execute"),
    )
    assert run.returncode == 0, run.stdout + run.stderr
    wait_until(
        lambda: (
            (found := cluster.partition(topic)) is not None
            and sorted(found.replicas) == sorted(replicas) == sorted(found.isrs)
        )
    )


def test_a_partition_moves_from_java_to_oncelog_and_back_under_load(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("moving", [JAVA])
    producer = cluster.producer(enable_idempotence=True)
    # More than what one fetch takes: Java then cuts its answers in the middle of a batch.
    values = [f"{number} {'x' * 5000}" for number in range(900)]
    send(producer, "moving", values[:300])
    reassign(cluster, tmp_path, "moving", [ONCELOG])
    send(producer, "moving", values[300:600])
    wait_until(lambda: not list(cluster.data_dir(JAVA).glob("moving-0")))
    reassign(cluster, tmp_path, "moving", [JAVA])
    send(producer, "moving", values[600:])
    wait_until(lambda: not list(cluster.data_dir(ONCELOG).glob("moving-0")))
    assert [value.decode() for value in cluster.read("moving", 900, group="moving")] == values


def command(cluster: Cluster, *arguments: str) -> str:
    """Runs a command of ours through the second Oncelog broker."""
    through = cluster.oncelog[SECOND].bootstrap_servers
    done = CliRunner().invoke(cli, [*arguments, "-b", through, "--timeout", "60s"])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_commands_move_partitions_and_leaders(cluster: Cluster) -> None:
    cluster.create_topic("ordered", [JAVA, ONCELOG], min_insync_replicas="2")
    send(cluster.producer(), "ordered", ["first"])
    command(cluster, "cluster", "reassign", "ordered", "--replicas", f"{SECOND},{JAVA}")
    cluster.wait_for_isr("ordered", SECOND, JAVA)
    wait_until(lambda: json.loads(command(cluster, "cluster", "reassign", "-o", "json")) == [])
    command(cluster, "cluster", "elect", "ordered:0")
    cluster.wait_for_leader("ordered", SECOND)
    send(cluster.producer(), "ordered", ["second"])
    equal_on(cluster, "ordered-0", JAVA, SECOND)
    folders = json.loads(command(cluster, "log", "dirs", "-o", "json"))
    keepers = [one["broker"] for one in folders if "ordered-0" in one["partitions"]]
    assert keepers == [JAVA, SECOND]


def test_a_description_shows_replicas_that_are_away_and_those_that_may_lead(cluster: Cluster) -> None:
    cluster.create_topic("short", [SECOND, ONCELOG], min_insync_replicas="2")
    cluster.wait_for_isr("short", SECOND, ONCELOG)
    assert cluster.oncelog[ONCELOG].stop() == 0
    cluster.wait_for_isr("short", SECOND)
    (described,) = json.loads(command(cluster, "topic", "describe", "short", "-o", "json"))
    (partition,) = described["partitions"]
    assert (partition["isr"], partition["elr"], partition["offline"]) == ([SECOND], [ONCELOG], [ONCELOG])
    assert described["under_min_isr"] == [0]
    text = command(cluster, "topic", "describe", "short")
    assert "ELR" in text and "OFFLINE" in text and "min.insync.replicas: partitions 0" in text
    cluster.oncelog[ONCELOG].start()
    cluster.wait_for_isr("short", SECOND, ONCELOG)


def test_a_broker_that_has_left_is_unregistered(cluster: Cluster) -> None:
    leaving = 7
    cluster.start_oncelog(leaving)
    assert cluster.oncelog.pop(leaving).stop() == 0
    command(cluster, "cluster", "unregister", str(leaving), "--yes")
    voters_and_brokers = json.loads(command(cluster, "cluster", "describe", "-o", "json"))
    assert leaving not in [one["broker"] for one in voters_and_brokers["brokers"]]


def test_preferred_leaders_are_elected(cluster: Cluster) -> None:
    cluster.create_topic("preferred", [SECOND, JAVA])
    assert cluster.oncelog[SECOND].stop() == 0
    cluster.wait_for_leader("preferred", JAVA)
    cluster.oncelog[SECOND].start()
    cluster.wait_for_isr("preferred", JAVA, SECOND)
    cluster.admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("preferred", 0)]).result(120)
    cluster.wait_for_leader("preferred", SECOND)
    send(cluster.producer(), "preferred", ["after"])
    equal_on(cluster, "preferred-0", JAVA, SECOND)


def test_a_topic_is_deleted_and_made_again_with_the_same_name(cluster: Cluster) -> None:
    for generation in ("first", "second"):
        cluster.create_topic("again", [ONCELOG, JAVA])
        send(cluster.producer(), "again", [generation])
        equal_on(cluster, "again-0", JAVA, ONCELOG)
        assert [value.decode() for value in cluster.read("again", 1, group=generation)] == [generation]
        for future in cluster.admin.delete_topics(["again"]).values():
            future.result(120)
        wait_until(lambda: not list(cluster.data_dir(ONCELOG).glob("again-0")))
        wait_until(lambda: "again" not in cluster.admin.list_topics(timeout=60).topics)


def test_partitions_are_added_and_settings_changed_through_an_oncelog_broker(cluster: Cluster) -> None:
    cluster.create_topic("changing", [ONCELOG, JAVA])
    admin = cluster.admin_on(cluster.oncelog[ONCELOG].bootstrap_servers)
    admin.create_partitions([NewPartitions("changing", 3)])["changing"].result(120)
    wait_until(lambda: cluster.partition("changing", 2) is not None)
    wanted = ConfigEntry("min.insync.replicas", "3", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "changing", incremental_configs=[wanted])
    admin.incremental_alter_configs([resource])[resource].result(120)
    described = ConfigResource(ResourceType.TOPIC, "changing")
    wait_until(lambda: admin.describe_configs([described])[described].result(120)["min.insync.replicas"].value == "3")
    # Of two replicas at most two can be asked for.
    send(cluster.producer(), "changing", ["both"])
    equal_on(cluster, "changing-0", JAVA, ONCELOG)


def test_without_enough_replicas_nothing_is_written(cluster: Cluster) -> None:
    cluster.create_topic("careful", [ONCELOG, SECOND], min_insync_replicas="2")
    producer = cluster.producer(retries=0, message_timeout_ms=20_000)
    send(producer, "careful", ["both have it"])
    assert cluster.oncelog[SECOND].stop() == 0
    cluster.wait_for_isr("careful", ONCELOG)
    failures: list[str] = []
    producer.produce("careful", b"one has it", on_delivery=lambda error, _: failures.append(error.name()))
    assert producer.flush(180) == 0
    assert failures in (["NOT_ENOUGH_REPLICAS"], ["_MSG_TIMED_OUT"])
    cluster.oncelog[SECOND].start()
    cluster.wait_for_isr("careful", ONCELOG, SECOND)
    send(producer, "careful", ["both again"])
    found = cluster.read("careful", 2, group="careful")
    assert [value.decode() for value in found] == ["both have it", "both again"]


@pytest.mark.parametrize("how", ["stop", "kill", "pause"])
@pytest.mark.parametrize("stopped", [ONCELOG, JAVA])
def test_a_group_goes_on_without_a_rebalance_when_its_coordinator_is_lost(
    cluster: Cluster, stopped: int, how: str
) -> None:
    """Groups are spread over four partitions, so that some have the broker that is lost."""
    topic = f"grouped-{stopped}-{how}"
    stays = JAVA + ONCELOG - stopped
    cluster.create_topic(topic, [stays, SECOND])
    producer = cluster.producer()
    send(producer, topic, ["one"])
    consumers = [_member(cluster, topic, f"{topic} {number}") for number in range(8)]
    rebalances: list[int] = []
    for consumer in consumers:
        consumer.subscribe([topic], on_revoke=lambda _, partitions: rebalances.append(len(partitions)))
    _all_read(consumers, "one")
    _lose(cluster, stopped, how)
    send(producer, topic, ["two"])
    _all_read(consumers, "two")
    assert rebalances == []
    for consumer in consumers:
        committed = consumer.committed([TopicPartition(topic, 0)], timeout=120)
        assert committed[0].offset == 2
        consumer.close()
    _bring_back(cluster, stopped, how)
    cluster.wait_for_isr("early", ONCELOG, JAVA)


def _member(cluster: Cluster, topic: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 30_000,
        }
    )


def _all_read(consumers: list[Consumer], wanted: str) -> None:
    waiting = list(consumers)

    def is_done() -> bool:
        for consumer in list(waiting):
            message = consumer.poll(0.1)
            if message is not None and not message.error() and message.value() == wanted.encode():
                _commit(consumer)
                waiting.remove(consumer)
        return not waiting

    wait_until(is_done)


def _commit(consumer: Consumer) -> None:
    def is_committed() -> bool:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            assert error.args[0].retriable() or error.args[0].name() == "NOT_COORDINATOR", error
            return False
        return True

    wait_until(is_committed)


def _lose(cluster: Cluster, node_id: int, how: str) -> None:
    node = cluster.nodes[node_id]
    {"pause": node.pause, "kill": node.kill, "stop": node.stop}[how]()


def _bring_back(cluster: Cluster, node_id: int, how: str) -> None:
    node = cluster.nodes[node_id]
    (node.resume if how == "pause" else node.start)()


def test_a_broker_on_a_new_disk_is_elected_again(cluster: Cluster) -> None:
    cluster.create_topic("new-disk", [SECOND, JAVA])
    send(cluster.producer(), "new-disk", ["kept elsewhere"])
    equal_on(cluster, "new-disk-0", JAVA, SECOND)
    broker = cluster.oncelog[SECOND]
    broker.kill()
    cluster.wait_for_leader("new-disk", JAVA)
    shutil.rmtree(broker.data_dir)
    broker.start()
    cluster.wait_for_isr("new-disk", JAVA, SECOND)

    def is_elected() -> bool:
        with contextlib.suppress(KafkaException):
            cluster.admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("new-disk", 0)]).result(120)
        found = cluster.partition("new-disk")
        return found is not None and found.leader == SECOND

    wait_until(is_elected)
    send(cluster.producer(), "new-disk", ["after"])
    equal_on(cluster, "new-disk-0", JAVA, SECOND)
