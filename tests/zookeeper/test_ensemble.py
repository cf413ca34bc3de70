"""ZooKeeper's leader and the active controller fail, together and in turn, under transactional load.

An ensemble of three, three controllers and three brokers. In each round something happens to the leader of ZooKeeper
and to the active controller, in an order and at times drawn from ONCELOG_ENSEMBLE_SEED, while topics are made and
transactions are committed.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from oncelog.testing.zookeeper import ZooKeeperServer
from tests.cluster.load import TransactionalLoad
from tests.waiting import wait_until
from tests.zookeeper.brokers import TOPICS, Nodes, running_nodes
from tests.zookeeper.split_ensemble import SplitEnsemble

pytestmark = pytest.mark.skipif(
    os.environ.get("ONCELOG_CLUSTER_TESTS") != "all", reason="takes minutes: make test-cluster"
)
SEED = int(os.environ.get("ONCELOG_ENSEMBLE_SEED", "1"))
_CHANGE_S = 120


class TopicMaker:
    """Makes one topic after the other, each as a user does: again, until it is there."""

    def __init__(self, servers: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": servers, "socket.timeout.ms": 10_000})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.made: list[str] = []
        self.refused = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(_CHANGE_S)
        assert not self._thread.is_alive(), "a topic is never made"

    def _run(self) -> None:
        while not self._stopping.is_set():
            name = f"made-{len(self.made)}"
            if self._is_made(name):
                self.made.append(name)
            else:
                self.refused += 1
            time.sleep(0.1)

    def _is_made(self, name: str) -> bool:
        [future] = self._admin.create_topics([NewTopic(name, 1, 3)], request_timeout=8).values()
        try:
            future.result(20)
        except KafkaException as error:
            return str(error.args[0].name()) == "TOPIC_ALREADY_EXISTS"
        return True


class Faults:
    """What happens to the leader of the ensemble; `over` ends it."""

    def __init__(self, ensemble: SplitEnsemble) -> None:
        self._ensemble = ensemble
        self._over: Callable[[], object] = lambda: None

    def kill(self) -> None:
        leader = self._leader()
        leader.kill()
        self._over = lambda: leader.start().wait_ready(_CHANGE_S)

    def pause(self) -> None:
        leader = self._leader()
        leader.pause()
        self._over = leader.resume

    def isolate(self) -> None:
        leader = self._leader()
        self._ensemble.isolate(leader.number)
        self._over = self._ensemble.heal

    def wait_for_another(self) -> None:
        """The one that is away may still believe that it leads, or not answer."""
        wait_until(lambda: any(server.mode() == "leader" for server in self._others), timeout_s=_CHANGE_S)

    def over(self) -> None:
        self._over()
        self._over = lambda: None
        wait_until(
            lambda: (
                sorted(server.mode() or "" for server in self._ensemble.servers) == ["follower", "follower", "leader"]
            ),
            timeout_s=_CHANGE_S,
        )

    def _leader(self) -> ZooKeeperServer:
        leader = self._ensemble.leader()
        assert leader is not None
        self._others = [server for server in self._ensemble.servers if server is not leader]
        return leader


@contextmanager
def cluster_on_ensemble(folder: Path) -> Iterator[tuple[SplitEnsemble, Nodes]]:
    with SplitEnsemble(folder) as ensemble, running_nodes(folder, ensemble.connect, "/oncelog/torn") as nodes:
        yield ensemble, nodes


def test_nothing_is_lost_while_both_leaders_fail(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with cluster_on_ensemble(tmp_path) as (ensemble, nodes):
        nodes.create_topics()
        faults, controllers = Faults(ensemble), nodes.controllers
        rounds = [(of_zookeeper, of_controllers)
                  for of_zookeeper in (faults.kill, faults.pause, faults.isolate)
                  for of_controllers in (controllers.kill_active, controllers.pause_active)]  # fmt: skip
        chance.shuffle(rounds)
        topics = TopicMaker(nodes.cluster.bootstrap_servers)
        one, two = (TransactionalLoad(nodes.cluster, name, TOPICS) for name in ("one", "two"))
        with one, two, topics, ThreadPoolExecutor(1) as pool:
            nodes.settle((one, two))
            for of_zookeeper, of_controllers in rounds:
                before = len(topics.made)
                if chance.random() < 0.5:
                    acting = pool.submit(of_controllers)
                    time.sleep(chance.uniform(0, 2))
                    of_zookeeper()
                    acting.result()
                else:
                    of_zookeeper()
                    time.sleep(chance.uniform(0, 4))
                    of_controllers()
                faults.wait_for_another()
                # With what is left of both, topics are made and transactions are committed.
                wait_until(lambda before=before: len(topics.made) > before + 2, timeout_s=_CHANGE_S)  # type: ignore[misc]
                nodes.settle((one, two))
                faults.over()
        nodes.check((one, two))
        log = controllers.check_log()
        assert len(log.writers) > len(rounds)
        assert sorted(set(log.topics)) == sorted(log.topics), "a topic was made twice"
        there = set(nodes.cluster.admin.list_topics(timeout=60).topics)
        assert set(topics.made) <= set(log.topics) <= there
