"""How long a transactional producer cannot commit when a broker or a controller is killed, beside Apache Kafka.

    python -m tests.cluster.failover --rounds 3 [--only oncelog]

Oncelog: two brokers and three controllers with their log in ZooKeeper. Apache Kafka: two brokers and three controllers.
Session time-outs are the same. One client commits small transactions one after the other, on one system and then on the
other. A gap is the longest time between two commits around the kill. The broker that is killed leads the topic and
coordinates the producer. For a controller that is killed, it is also told after how long a topic could be made again.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from oncelog.client import Admin
from oncelog.core.hashing import coordinator_partition
from oncelog.core.ids import TRANSACTION_STATE_TOPIC
from oncelog.testing.zookeeper import ZooKeeperEnsemble
from peers.kafka.kafka import KafkaServer
from tests.cluster.clusters import COMMON, INTERNAL_TOPICS, Cluster, running_cluster
from tests.cluster.load import TransactionalLoad
from tests.cluster.own_controllers import own_controllers
from tests.oncelog_node import OncelogNode
from tests.waiting import wait_until

BROKERS: Final = (1, 2)
CONTROLLERS: Final = (7, 8, 9)
TOPIC: Final = "orders"
SETTINGS: Final = {
    **COMMON,
    # Kafka's default of controller.quorum.fetch.timeout.ms, after which a follower looks for another active controller.
    "zookeeper.session.timeout.ms": "2000",
}
CLIENT: Final = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 250}
"""By default librdkafka asks for the coordinator only after it has failed to connect to the last one, for which it may
wait for ten seconds: then the gap is a matter of chance, on both systems."""
AROUND_S: Final = 3.0
LONG_S: Final = 180


class Round(NamedTuple):
    broker_gap_s: float
    controller_gap_s: float
    topic_after_s: float


class System:
    def __init__(self, name: str, cluster: Cluster, controllers: dict[int, OncelogNode] | dict[int, KafkaServer]):
        self.name = name
        self._cluster = cluster
        self._controllers = controllers
        self._topics = 0
        self.rounds: list[Round] = []

    def play_round(self) -> None:
        cluster = self._cluster
        with TransactionalLoad(cluster, self._id(), [TOPIC], CLIENT) as load:
            wait_until(lambda: len(load.committed) > 50, timeout_s=LONG_S)
            controller_gap_s, topic_after_s = self._kill_controller(load)
            broker_gap_s = self._kill_leader(load)
        self.rounds.append(Round(broker_gap_s, controller_gap_s, topic_after_s))
        cluster.wait_for_isr(TOPIC, *BROKERS)

    def _id(self) -> str:
        """Of a producer whose coordinator is the leader of the topic, so that the one who is killed is both."""
        self._cluster.producer(**{"transactional.id": "any"}).init_transactions(LONG_S)  # makes the coordinators' topic
        partitions = int(INTERNAL_TOPICS["transaction.state.log.num.partitions"])
        leader = self._leader(TOPIC)
        ids = (f"round {len(self.rounds)} {number}" for number in itertools.count())
        return next(
            each
            for each in itertools.islice(ids, 1000)
            if self._leader(TRANSACTION_STATE_TOPIC, coordinator_partition(each, partitions)) == leader
        )

    def _kill_leader(self, load: TransactionalLoad) -> float:
        node = self._cluster.nodes[self._leader(TOPIC)]
        killed_s = _kill(node)
        gap_s = _gap(load, killed_s)
        node.start()
        wait_until(self._in_sync, timeout_s=LONG_S)
        return gap_s

    def _leader(self, topic: str, index: int = 0) -> int:
        found = self._cluster.partition(topic, index)
        assert found is not None
        return found.leader

    def _kill_controller(self, load: TransactionalLoad) -> tuple[float, float]:
        with Admin({"bootstrap.servers": self._cluster.bootstrap_servers}) as admin:
            active = self._controllers[admin.describe_quorum().leader_id]
        killed_s = _kill(active)
        self._create_topic()
        topic_after_s = time.monotonic() - killed_s
        gap_s = _gap(load, killed_s)
        active.start()
        return gap_s, topic_after_s

    def _create_topic(self) -> None:
        self._topics += 1
        topic = NewTopic(f"another-{self._topics}", 1, 2)

        def is_made() -> bool:
            [future] = self._cluster.admin.create_topics([topic], request_timeout=10).values()
            try:
                future.result(20)
            except KafkaException as error:
                return str(error.args[0].name()) == "TOPIC_ALREADY_EXISTS"
            return True

        wait_until(is_made, timeout_s=LONG_S)

    def _in_sync(self) -> bool:
        found = self._cluster.partition(TOPIC)
        return found is not None and sorted(found.isrs) == sorted(BROKERS)


def _kill(node: OncelogNode | KafkaServer) -> float:
    killed_s = time.monotonic()
    node.kill()
    return killed_s


def _gap(load: TransactionalLoad, killed_s: float) -> float:
    """The longest time without a commit, of those that end at most a while after the producer goes on."""
    wait_until(lambda: load.times_s[-1] > killed_s + AROUND_S, timeout_s=LONG_S)
    times_s = list(load.times_s)
    around = [(before, after) for before, after in pairwise(times_s) if after > killed_s]
    return max(after - before for before, after in around)


@contextmanager
def oncelog(folder: Path) -> Iterator[System]:
    with (
        ZooKeeperEnsemble(folder / "zookeeper", 1) as zookeeper,
        running_cluster(folder) as cluster,
        own_controllers(cluster, zookeeper.connect, "/failover", SETTINGS, CONTROLLERS) as controllers,
    ):
        for node in BROKERS:
            cluster.start_oncelog(node)
        cluster.create_topic(TOPIC, list(BROKERS))
        yield System("oncelog", cluster, controllers.processes)


@contextmanager
def kafka(folder: Path) -> Iterator[System]:
    with running_cluster(folder) as cluster:
        controllers = cluster.start_controllers(*CONTROLLERS)
        settings = {
            # Voters that are not in the metadata log have to be known to brokers, too.
            "controller.quorum.voters": ",".join(server.voter for server in controllers.values()),
            # All of them start at once, perhaps on few cores.
            "initial.broker.registration.timeout.ms": str(LONG_S * 1000),
        }
        for node in BROKERS:
            cluster.start_java(node, properties=settings)
        cluster.create_topic(TOPIC, list(BROKERS))
        yield System("kafka", cluster, controllers)


SYSTEMS: Final = (oncelog, kafka)


def report(systems: Sequence[System]) -> None:
    for number, what in enumerate(
        ("broker killed: gap", "controller killed: gap", "controller killed: a topic made after")
    ):
        for system in systems:
            values_s = sorted(each[number] for each in system.rounds)
            shown = ", ".join(f"{value:.2f}" for value in values_s)
            say(f"{what:40} {system.name:8} median {median(values_s):6.2f} s, of {shown}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=[system.__name__ for system in SYSTEMS])
    arguments = parser.parse_args()
    played = []
    for make in SYSTEMS:
        if arguments.only in (None, make.__name__):
            with tempfile.TemporaryDirectory(prefix="oncelog-failover-") as folder, make(Path(folder)) as system:
                played.append(system)
                for number in range(arguments.rounds):
                    system.play_round()
                    say(f"round {number + 1}, {system.name}: {system.rounds[-1]}")
    report(played)


if __name__ == "__main__":
    main()
