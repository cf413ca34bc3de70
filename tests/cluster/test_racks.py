"""Consumers of other people read from a follower in their rack (KIP-392), whatever kind of broker leads or follows."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from peers.kafka.jars import java_command
from tests.cluster.clusters import Cluster, running_cluster, send
from tests.conformance.conftest import require
from tests.waiting import wait_until

CONTROLLER, JAVA, ONCELOG = 9, 1, 2
RACKS = {JAVA: "east", ONCELOG: "west"}
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
VALUES = [str(number) for number in range(200)]
PAIRS = pytest.mark.parametrize(("leader", "follower"), [(JAVA, ONCELOG), (ONCELOG, JAVA)], ids=["Java", "Oncelog"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("kafka")
    with running_cluster(tmp_path_factory.mktemp("racks")) as started:
        started.start_controller(node_id=CONTROLLER, roles="controller")
        started.start_java(JAVA, {"broker.rack": RACKS[JAVA], "replica.selector.class": SELECTOR})
        started.start_oncelog(ONCELOG, broker_rack=RACKS[ONCELOG], replica_selector_class=SELECTOR)
        for leader, follower in ((JAVA, ONCELOG), (ONCELOG, JAVA)):
            started.create_topic(led_by(leader), [leader, follower], min_insync_replicas="2")
            send(started.producer(), led_by(leader), VALUES)
        yield started


def led_by(leader: int) -> str:
    return f"led-by-{leader}"


@PAIRS
def test_librdkafka_reads_from_the_follower_in_its_rack(cluster: Cluster, leader: int, follower: int) -> None:
    topic, found, sources = led_by(leader), [], set()

    def note(statistics: str) -> None:
        partition = json.loads(statistics)["topics"].get(topic, {}).get("partitions", {}).get("0", {})
        sources.add(partition.get("broker"))

    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": f"librdkafka {topic}",
            "client.rack": RACKS[follower],
            "statistics.interval.ms": 100,
            "stats_cb": note,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])

    def has_all() -> bool:
        found.extend((message.value() or b"").decode() for message in consumer.consume(100, 0.1))
        return len(found) >= len(VALUES) and follower in sources

    try:
        wait_until(has_all, timeout_s=120)
    finally:
        consumer.close()
    assert found == VALUES


@PAIRS
def test_the_java_consumer_reads_from_the_follower_in_its_rack(cluster: Cluster, leader: int, follower: int) -> None:
    """Its metrics tell where it reads."""
    topic = led_by(leader)
    command = java_command(
        "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", cluster.bootstrap_servers,
        "--topic", topic, "--num-records", str(len(VALUES)), "--timeout", "60000", "--print-metrics",
        "--command-property", f"client.rack={RACKS[follower]}",
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if "preferred-read-replica" in line]
    assert [line.rsplit(":", 1)[1].strip() for line in told] == [str(follower)], done.stdout + done.stderr
    counts = [line.split(",")[4].strip() for line in done.stdout.splitlines() if line.startswith("20")]
    assert counts == [str(len(VALUES))], done.stdout
