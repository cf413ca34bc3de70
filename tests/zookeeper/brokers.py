"""Brokers of both kinds under Oncelog's controllers on ZooKeeper, their faults, and the load that survives them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from confluent_kafka import ElectionType, KafkaException, TopicPartition

from tests.cluster.clusters import COMMON, Cluster, running_cluster
from tests.cluster.load import TransactionalLoad
from tests.cluster.own_controllers import OwnControllers, own_controllers
from tests.cluster.test_faults import check_replicas, check_topics, wait_for_commits
from tests.waiting import wait_until

BROKERS: Final = (1, 2, 3)
TOPICS: Final = tuple(f"led-by-{node}" for node in BROKERS)
REPLICATED: Final[Mapping[str, str]] = {
    **COMMON,
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
_SETTLED_S = 180


class Nodes:
    """Each fault is over when its call returns: others lead, and the broker is started again or goes on."""

    def __init__(self, cluster: Cluster, controllers: OwnControllers) -> None:
        self.cluster = cluster
        self.controllers = controllers

    def start(self, java: Iterable[int]) -> None:
        for node in BROKERS:
            if node in java:
                self.cluster.start_java(node, properties=REPLICATED)
            else:
                self.cluster.start_oncelog(node, **REPLICATED)

    def kill(self, node: int) -> None:
        self.cluster.nodes[node].kill()
        self._wait_until_led_by_others(node)
        self.cluster.nodes[node].start()

    def stop(self, node: int) -> None:
        """As an operator does: leaderships are moved away first."""
        self.cluster.nodes[node].stop()
        self._wait_until_led_by_others(node)
        self.cluster.nodes[node].start()

    def pause(self, node: int) -> None:
        """It is fenced meanwhile, and believes that it leads when it goes on."""
        with self.cluster.paused(node):
            self._wait_until_led_by_others(node)

    def _wait_until_led_by_others(self, node: int) -> None:
        """As the others tell it."""
        other = next(self.cluster.nodes[number].bootstrap_servers for number in BROKERS if number != node)

        def is_led_by_others() -> bool:
            found = self.cluster.partition(f"led-by-{node}", on=other)
            return found is not None and found.leader != node

        wait_until(is_led_by_others, timeout_s=_SETTLED_S)

    def create_topics(self) -> None:
        """Each broker is the preferred leader of one."""
        for position, topic in enumerate(TOPICS):
            self.cluster.create_topic(topic, [*BROKERS[position:], *BROKERS[:position]], min_insync_replicas="2")

    def wait_until_in_sync(self) -> None:
        for topic in TOPICS:
            wait_until(lambda topic=topic: self._is_in_sync(topic), timeout_s=_SETTLED_S)  # type: ignore[misc]

    def _is_in_sync(self, topic: str) -> bool:
        found = self.cluster.partition(topic)
        return found is not None and sorted(found.isrs) == sorted(BROKERS)

    def _is_given_back(self, node: int, topic: str) -> bool:
        found = self.cluster.partition(topic)
        if found is not None and found.leader == node:
            return True
        with suppress(KafkaException):
            self.cluster.admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(120)
        return False

    def settle(self, loads: Sequence[TransactionalLoad]) -> None:
        """All replicas are in sync, each broker leads its topic again, and transactions are committed."""
        self.wait_until_in_sync()
        for node, topic in zip(BROKERS, TOPICS, strict=True):
            wait_until(lambda node=node, topic=topic: self._is_given_back(node, topic), timeout_s=_SETTLED_S)  # type: ignore[misc]
        for load in loads:
            wait_for_commits(load, 5)

    def check(self, loads: Sequence[TransactionalLoad]) -> None:
        """Nothing is lost, doubled or torn, and all replicas are equal."""
        check_topics(self.cluster, TOPICS, [value for load in loads for value in load.committed])
        for topic in TOPICS:
            check_replicas(self.cluster, topic, *BROKERS)


@contextmanager
def running_nodes(folder: Path, connect: str, chroot: str, java: Iterable[int] = ()) -> Iterator[Nodes]:
    with running_cluster(folder) as cluster, own_controllers(cluster, connect, chroot, REPLICATED) as controllers:
        nodes = Nodes(cluster, controllers)
        nodes.start(java)
        yield nodes
