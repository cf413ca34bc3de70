"""Logs that get shorter, on leaders and followers of both kinds: deleted records, and compaction by each broker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.cluster.clusters import Cluster, log_bytes, running_cluster, send
from tests.conformance.conftest import require
from tests.waiting import wait_until

CONTROLLER, JAVA, ONCELOG = 9, 1, 2
CLEANING = {"log.cleaner.backoff.ms": "500"}
WAYS = [(ONCELOG, JAVA), (JAVA, ONCELOG)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("kafka")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as started:
        started.start_controller(node_id=CONTROLLER, roles="controller")
        started.start_java(JAVA, properties=CLEANING)
        started.start_oncelog(ONCELOG, **CLEANING)
        yield started


def move(cluster: Cluster, topic: str, leader: int, follower: int) -> None:
    """The follower leads, because the leader stops; it is back when this returns."""
    cluster.nodes[leader].stop()
    cluster.wait_for_leader(topic, follower)
    cluster.nodes[leader].start()
    cluster.wait_for_isr(topic, leader, follower)
    assert (found := cluster.partition(topic)) is not None and found.leader == follower


def start_offset(cluster: Cluster, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none"})
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=120)
    finally:
        consumer.close()
    return int(low)


@pytest.mark.parametrize(("leader", "follower"), WAYS)
def test_records_that_were_deleted_stay_so_on_the_next_leader(cluster: Cluster, leader: int, follower: int) -> None:
    topic = f"deleted-{leader}"
    cluster.create_topic(topic, [leader, follower])
    values = [str(number) for number in range(100)]
    send(cluster.producer(), topic, values)
    cluster.admin.delete_records([TopicPartition(topic, 0, 60)])[TopicPartition(topic, 0)].result(120)
    assert start_offset(cluster, topic) == 60
    move(cluster, topic, leader, follower)
    assert start_offset(cluster, topic) == 60
    send(cluster.producer(), topic, ["last"])
    assert [value.decode() for value in cluster.read_until(topic, "last")] == [*values[60:], "last"]


@pytest.mark.parametrize(("leader", "follower"), WAYS)
def test_each_replica_compacts_its_log_and_shows_the_same(cluster: Cluster, leader: int, follower: int) -> None:
    topic = f"compacted-{leader}"
    cluster.create_topic(
        topic, [leader, follower], cleanup_policy="compact", segment_ms="200", min_cleanable_dirty_ratio="0.01"
    )
    keys, rounds = 10, 8
    for number in range(rounds):
        write(cluster, topic, {f"key {key}": f"value {number}" for key in range(keys)})
        time.sleep(0.3)  # the next write begins another segment, and the one before can be compacted
    newest = {f"key {key}": f"value {rounds - 1}" for key in range(keys)}
    for node in (leader, follower):
        wait_until(lambda node=node: log_bytes(cluster, node, f"{topic}-0").count(b"value 0") == 0)  # type: ignore[misc]
    assert table(cluster, topic, "first") == newest
    move(cluster, topic, leader, follower)
    assert table(cluster, topic, "second") == newest
    write(cluster, topic, {"key 0": "after"})
    assert table(cluster, topic, "third") == {**newest, "key 0": "after"}


def write(cluster: Cluster, topic: str, entries: dict[str, str]) -> None:
    producer = cluster.producer()
    for key, value in entries.items():
        producer.produce(topic, value.encode(), key.encode(), partition=0)
    assert producer.flush(180) == 0


def table(cluster: Cluster, topic: str, group: str) -> dict[str, str]:
    """The newest value of each key, read from the beginning to the present end."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": f"{topic} {group}",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[str, str] = {}
    at_end = False

    def is_read() -> bool:
        nonlocal at_end
        for message in consumer.consume(100, 0.2):
            if message.error():
                at_end = True
            else:
                found[(message.key() or b"").decode()] = (message.value() or b"").decode()
        return at_end

    try:
        wait_until(is_read)
    finally:
        consumer.close()
    return found
