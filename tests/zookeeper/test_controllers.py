"""Oncelog's controllers on ZooKeeper, and Oncelog's brokers under them, as processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from oncelog.testing.broker import BrokerProcess
from oncelog.testing.zookeeper import ZooKeeperEnsemble
from peers.kafka.kafka import CLUSTER_ID
from tests.cluster.clusters import Cluster, running_cluster, send
from tests.cluster.own_controllers import own_controllers
from tests.waiting import wait_until

BROKERS = (1, 2)
CONTROLLERS = (100, 101)


def create(cluster: Cluster, topic: str) -> None:
    """As a user does: again, until it is there."""

    def is_there() -> bool:
        [future] = cluster.admin.create_topics([NewTopic(topic, 2, 2)], request_timeout=5).values()
        try:
            future.result(20)
        except KafkaException as error:
            return str(error.args[0].name()) == "TOPIC_ALREADY_EXISTS"
        return True

    wait_until(is_there)


def test_the_active_controller_is_killed_and_the_other_goes_on(
    tmp_path: Path, zookeeper: ZooKeeperEnsemble, chroot: str
) -> None:
    with (
        running_cluster(tmp_path) as cluster,
        own_controllers(cluster, zookeeper.connect, chroot, nodes=CONTROLLERS) as controllers,
    ):
        for node_id in BROKERS:
            cluster.start_oncelog(node_id)
        create(cluster, "before")
        first = controllers.wait_for_active()
        controllers.processes[first].kill()
        send(cluster.producer(acks="all"), "before", ["1", "2"])
        create(cluster, "after")
        second = controllers.wait_for_active(first)
        send(cluster.producer(acks="all"), "after", ["3"])
        # The one that is back follows, and takes over in turn.
        controllers.processes[first].start()
        controllers.processes[second].stop()
        assert controllers.wait_for_active(second) == first
        create(cluster, "last")
        topics = cluster.admin.list_topics(timeout=60).topics
        assert {"before", "after", "last"} <= set(topics)


@pytest.mark.skipif(os.environ.get("ONCELOG_CLUSTER_TESTS") != "all", reason="takes half a minute: make test-cluster")
def test_brokers_go_on_serving_without_zookeeper_and_controllers_go_on_with_it(tmp_path: Path) -> None:
    with (
        ZooKeeperEnsemble(tmp_path / "zookeeper") as ensemble,
        running_cluster(tmp_path) as cluster,
        own_controllers(cluster, ensemble.connect, nodes=CONTROLLERS) as controllers,
    ):
        for node_id in BROKERS:
            cluster.start_oncelog(node_id)
        create(cluster, "before")
        [server] = ensemble.servers
        server.kill()
        [future] = cluster.admin.create_topics([NewTopic("meanwhile", 1, 2)], request_timeout=5).values()
        with pytest.raises(KafkaException):
            future.result(20)
        send(cluster.producer(acks="all"), "before", ["1", "2"])
        server.start().wait_ready()
        controllers.wait_for_active()
        create(cluster, "after")
        send(cluster.producer(acks="all"), "after", ["3"])
        assert cluster.read("before", 2, group="readers") == [b"1", b"2"]
        assert all(process.running for process in controllers.processes.values())


def test_a_controller_of_another_cluster_ends_with_a_reason(
    tmp_path: Path, zookeeper: ZooKeeperEnsemble, chroot: str
) -> None:
    settings = {"process.roles": "controller", "node.id": 1, "zookeeper.connect": zookeeper.connect + chroot}
    own = BrokerProcess(tmp_path / "own", {**settings, "cluster.id": CLUSTER_ID}).start(timeout_s=90)
    other = BrokerProcess(tmp_path / "other", {**settings, "cluster.id": "4L6g3nShT-eMCtK--X86sw", "node.id": 2})
    without = BrokerProcess(tmp_path / "without", settings)
    try:
        with pytest.raises(RuntimeError, match=f"metadata of cluster {CLUSTER_ID}"):
            other.start(timeout_s=90)
        with pytest.raises(RuntimeError, match="controllers that share a log need the same one"):
            without.start(timeout_s=90)
    finally:
        own.stop()
