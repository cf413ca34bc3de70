"""From one Oncelog node into Apache Kafka and back, while clients go on: the node becomes a cluster, brokers are added,
partitions move, brokers leave, the controller is replaced on the folder that the other one left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from oncelog.cli.main import cli
from peers.kafka.jars import run_java
from peers.kafka.kafka import CLUSTER_ID, KafkaServer, free_port
from tests.cluster.clusters import COMMON, Cluster, running_cluster
from tests.cluster.load import GroupMember, SteadyReader, TransactionalLoad
from tests.cluster.test_faults import check_reader, check_topics
from tests.conformance.conftest import require
from tests.oncelog_node import OncelogNode
from tests.waiting import wait_until

CONTROLLER, OURS = 100, 1
JAVA = (11, 12)
TOPICS = ("orders", "invoices")
ALONE = {"node.id": OURS, "cluster.id": CLUSTER_ID, **COMMON}


class Clients:
    """A transactional producer, a member of a group, and a reader without one. None is ever replaced, and all of them
    know the address of the first node alone."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.load = TransactionalLoad(cluster, "load", TOPICS)
        self.member = GroupMember(cluster, "readers", TOPICS)
        self.reader = SteadyReader(cluster, TOPICS)

    def go_on(self) -> None:
        """All of them do, wherever partitions and coordinators are by now."""
        load, member = self.load, self.member
        committed, commits, read = len(load.committed), member.commits, self._read()

        def do() -> bool:
            assert (load.failure, member.failure) == (None, None)
            return len(load.committed) > committed + 20 and member.commits > commits and self._read() > read + 20

        wait_until(do, timeout_s=120)

    def _read(self) -> int:
        return min(len(found[topic]) for found in (self.member.found, self.reader.found) for topic in TOPICS)

    def check(self) -> None:
        """Every committed transaction is there once and on both topics, no aborted one is, and all have read that."""
        self.load.stop()
        assert self.load.producers == 1
        check_topics(self._cluster, TOPICS, self.load.committed)
        check_reader(self._cluster, self.reader)
        wait_until(lambda: self.member.failure or self.member.found == self.reader.found)
        assert self.member.found == self.reader.found


@contextmanager
def clients_of(cluster: Cluster) -> Iterator[Clients]:
    clients = Clients(cluster)
    with clients.reader, clients.load, clients.member:
        clients.go_on()
        yield clients


def command(cluster: Cluster, *arguments: str) -> str:
    done = CliRunner().invoke(cli, [*arguments, "-b", cluster.bootstrap_servers, "--timeout", "60s"])
    assert done.exit_code == 0, done.output
    return done.stdout


def move_everything(cluster: Cluster, nodes: Sequence[int]) -> None:
    command(cluster, "cluster", "reassign", "*", "__*", "--replicas", ",".join(map(str, nodes)))
    wait_until(lambda: json.loads(command(cluster, "cluster", "reassign", "-o", "json")) == [], timeout_s=120)
    names = [one["topic"] for one in json.loads(command(cluster, "topic", "list", "--internal", "-o", "json"))]
    wait_until(lambda: all(is_on(cluster, name, nodes) for name in names))


def is_on(cluster: Cluster, topic: str, nodes: Sequence[int]) -> bool:
    found = cluster.partition(topic)
    return found is not None and found.replicas == list(nodes) and sorted(found.isrs) == sorted(nodes)


def unregister(cluster: Cluster, node: int) -> None:
    def is_away() -> bool:
        described = json.loads(command(cluster, "cluster", "describe", "-o", "json"))
        return node not in [broker["broker"] for broker in described["brokers"]]

    wait_until(is_away)
    command(cluster, "cluster", "unregister", str(node), "--yes")


def turn_on_eligible_leaders(cluster: Cluster) -> None:
    """With Kafka's own tool. They are off in the cluster that was one node."""
    feature = "eligible.leader.replicas.version"
    upgrade = ("upgrade", "--feature", f"{feature}=1")
    done = run_java("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", cluster.bootstrap_servers, *upgrade)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(command(cluster, "cluster", "describe", "-o", "json"))["features"][feature] == 1


def active_controller(cluster: Cluster) -> tuple[int, int]:
    """And its epoch."""
    quorum = json.loads(command(cluster, "cluster", "describe", "-o", "json"))["quorum"]
    return quorum["leader"], quorum["epoch"]


def java_controller(cluster: Cluster, data_dir: Path, port: int) -> KafkaServer:
    server = KafkaServer(
        cluster.folder / "java-controller",
        node_id=CONTROLLER,
        roles="controller",
        controller_port=port,
        properties=COMMON,
    )
    server.data_dir = data_dir
    return server


def test_there_and_back(tmp_path: Path) -> None:
    require("kafka")
    with running_cluster(tmp_path) as cluster:
        data, metadata = tmp_path / "data", tmp_path / "controller"
        node = cluster.oncelog[OURS] = OncelogNode(data, ALONE).start()
        for topic in TOPICS:
            cluster.create_topic(topic, [OURS], retention_ms="-1")
        with clients_of(cluster) as clients:
            # The node becomes a cluster.
            assert node.stop() == 0
            arguments = ["--data-dir", str(data), "--controller-dir", str(metadata), "--controller-id", str(CONTROLLER)]
            assert CliRunner().invoke(cli, ["cluster", "split", *arguments]).exit_code == 0
            roles = {"process.roles": "controller", "node.id": CONTROLLER}
            ours = cluster.own_controller = OncelogNode(metadata, {**COMMON, **roles}, port=free_port()).start()
            cluster.oncelog[OURS] = cluster.new_oncelog(OURS, "data", node.bootstrap_servers).start()
            clients.go_on()

            # Java's brokers take over.
            for java in JAVA:
                cluster.start_java(java)
            turn_on_eligible_leaders(cluster)
            move_everything(cluster, JAVA)
            clients.go_on()
            assert cluster.oncelog[OURS].stop() == 0
            unregister(cluster, OURS)
            clients.go_on()

            # And so does Java's controller.
            _, epoch = active_controller(cluster)
            assert ours.stop() == 0
            theirs = cluster.controller = java_controller(cluster, metadata, ours.port).start()
            cluster.create_topic("made-by-kafka", list(JAVA), retention_ms="-1")
            clients.go_on()
            assert active_controller(cluster) > (CONTROLLER, epoch)

            # Back: our broker takes over.
            cluster.oncelog[OURS].start()
            move_everything(cluster, [OURS])
            clients.go_on()
            for java in JAVA:
                cluster.java[java].stop()
                unregister(cluster, java)
            clients.go_on()

            # And so does our controller.
            _, epoch = active_controller(cluster)
            theirs.stop()
            ours.start()
            cluster.create_topic("made-by-oncelog", [OURS])
            clients.go_on()
            assert active_controller(cluster) > (CONTROLLER, epoch)

            # It becomes one node again.
            assert cluster.oncelog[OURS].stop() == 0
            assert ours.stop() == 0
            shutil.move(metadata / "__cluster_metadata-0", data)
            cluster.oncelog[OURS] = OncelogNode(data, ALONE, port=node.port).start()
            clients.go_on()
            clients.check()
        topics = {one["topic"] for one in json.loads(command(cluster, "topic", "list", "-o", "json"))}
        assert topics == {*TOPICS, "made-by-kafka", "made-by-oncelog"}
        for topic in (*TOPICS, "made-by-kafka"):
            described = json.loads(command(cluster, "config", "show", "topic", topic, "-o", "json"))
            assert {one["name"]: one["value"] for one in described}["retention.ms"] == "-1"
