"""Transactional load on Java and Oncelog brokers, three in all, with a fault every few seconds, as long as asked for.

    python -m tests.cluster.chaos --seconds 600 --seed 1 --java 2 [--interval 10] [--controller zookeeper]

The controller is one of Apache Kafka or one of Oncelog, or there are three of Oncelog on ZooKeeper, of which the active
one is meant. Three replicas of everything, two of them in sync at least. Brokers and the controller are killed, stopped
and paused.
Each fault is followed by a recovery; with `--interval` there is one every so many seconds, whether what it meets has
recovered or not, on up to two brokers and the controller at the same time. At the end every committed transaction is
there once and on all topics, no aborted one is, replicas are equal, and a consumer that read all the time has seen what
is there.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from oncelog.testing.zookeeper import ZooKeeperEnsemble
from peers.kafka.kafka import KafkaServer
from tests.cluster import clusters
from tests.cluster.clusters import Cluster, running_cluster
from tests.cluster.load import SteadyReader, TransactionalLoad
from tests.cluster.own_controllers import OwnControllers, own_controllers
from tests.cluster.test_faults import check_reader, check_replicas, check_topics
from tests.oncelog_node import OncelogNode
from tests.waiting import wait_until

CONTROLLER = 9
NODES = (1, 2, 3)
TOPICS = tuple(f"chaos-{node}" for node in NODES)
BROKERS_AWAY_MAX = 2
RECOVERY_S = 180


class Faults:
    """What is done to nodes, and which are not back yet."""

    def __init__(self, cluster: Cluster, controllers: OwnControllers | None, chance: random.Random) -> None:
        """`controllers`: those on ZooKeeper, if that is where they are."""
        self._cluster = cluster
        self._controllers = controllers
        self._chance = chance
        self._lock = threading.Lock()
        self._away: set[int] = set()
        self.failures: list[Exception] = []
        self.count = 0

    def one(self) -> str:
        """Returns when it is over and the node is started again."""
        node, kind, away_s = self._choose([*NODES, CONTROLLER])
        self._do(node, kind, away_s)
        return f"{kind} {node}"

    def begin_one(self) -> str:
        """Returns at once."""
        with self._lock:
            away = set(self._away)
        may_go = len(away & set(NODES)) < BROKERS_AWAY_MAX
        candidates = [node for node in (*NODES, CONTROLLER) if node not in away and (may_go or node == CONTROLLER)]
        if not candidates:
            return "nothing, since enough nodes are away"
        node, kind, away_s = self._choose(candidates)
        with self._lock:
            self._away.add(node)
        threading.Thread(target=self._run, args=(node, kind, away_s), daemon=True).start()
        return f"{kind} {node}"

    def wait_until_over(self) -> None:
        wait_until(lambda: not self._away, timeout_s=RECOVERY_S)
        if self.failures:
            raise self.failures[0]

    def _choose(self, nodes: list[int]) -> tuple[int, str, float]:
        self.count += 1
        return self._chance.choice(nodes), self._chance.choice(("kill", "stop", "pause")), self._chance.uniform(0, 5)

    def _run(self, node: int, kind: str, away_s: float) -> None:
        try:
            self._do(node, kind, away_s)
        except Exception as error:  # noqa: BLE001  raised in the thread that waits for it
            self.failures.append(error)
        finally:
            with self._lock:
                self._away.discard(node)

    def _do(self, node: int, kind: str, away_s: float) -> None:
        if node == CONTROLLER and self._controllers is not None:
            (self._controllers.pause_active if kind == "pause" else self._controllers.kill_active)()
            return
        process = self._cluster.only_controller if node == CONTROLLER else self._cluster.nodes[node]
        if kind == "pause":
            process.pause()
            time.sleep(away_s)
            process.resume()
        else:
            (process.kill if kind == "kill" else process.stop)()
            time.sleep(away_s)
            _start(process)


def _start(process: KafkaServer | OncelogNode) -> None:
    """A broker that finds no controller for a minute ends, as Apache Kafka's does. Whoever runs it starts it again."""
    deadline_s = time.monotonic() + RECOVERY_S
    while True:
        try:
            process.start()
            return
        except RuntimeError as error:
            if "no active controller has answered" not in str(error) or time.monotonic() > deadline_s:
                raise


def in_sync(cluster: Cluster, topic: str) -> bool:
    found = cluster.partition(topic)
    return found is not None and sorted(found.isrs) == sorted(NODES)


def committed_by(loads: list[TransactionalLoad]) -> int:
    return sum(len(load.committed) for load in loads)


@contextmanager
def started_cluster(folder: Path, controller: str) -> Iterator[tuple[Cluster, OwnControllers | None]]:
    with running_cluster(folder) as cluster:
        if controller == "zookeeper":
            with ZooKeeperEnsemble(folder) as ensemble, own_controllers(cluster, ensemble.connect) as controllers:
                yield cluster, controllers
            return
        if controller == "java":
            cluster.start_controller(node_id=CONTROLLER, roles="controller")
        else:
            cluster.start_own_controller(node_id=CONTROLLER)
        yield cluster, None


def run(folder: Path, seconds: float, seed: int, java: int, interval_s: float | None, controller: str) -> None:
    """The first `java` brokers are Java's."""
    clusters.COMMON.update({"offsets.topic.replication.factor": "3", "transaction.state.log.replication.factor": "3"})
    clusters.COMMON["transaction.state.log.min.isr"] = "2"
    with started_cluster(folder, controller) as (cluster, controllers):
        for node in NODES:
            (cluster.start_java if node <= java else cluster.start_oncelog)(node)
        for number, topic in enumerate(TOPICS):
            replicas = [*NODES[number:], *NODES[:number]]
            cluster.create_topic(topic, replicas, min_insync_replicas="2")
        faults = Faults(cluster, controllers, random.Random(seed))
        loads = [TransactionalLoad(cluster, f"chaos {number}", TOPICS) for number in range(4)]
        reader = SteadyReader(cluster, TOPICS)
        until_s = time.monotonic() + seconds
        with reader, loads[0], loads[1], loads[2], loads[3]:
            while time.monotonic() < until_s and not any(load.failure for load in loads):
                if interval_s is None:
                    before = committed_by(loads)
                    what = faults.one()
                    recover(cluster, loads, before)
                else:
                    what = faults.begin_one()
                    time.sleep(interval_s)
                say(f"{what}: {committed_by(loads)} committed")
            faults.wait_until_over()
            recover(cluster, loads, committed_by(loads))
            for load in loads:
                load.stop()
            committed = [value for load in loads for value in load.committed]
            check_topics(cluster, TOPICS, committed)
            check_reader(cluster, reader)
        for topic in TOPICS:
            check_replicas(cluster, topic, *NODES)
        errors = [error for load in loads for error in load.errors]
        times_s = sorted(time_s for load in loads for time_s in load.times_s)
        gap_s = max(after - before for before, after in pairwise(times_s))
        say(
            f"{faults.count} faults, {len(committed)} transactions committed, all there once and on all topics; "
            f"{len(errors)} errors, at most {gap_s:.1f} s without a commit"
        )
        for error in errors[:10]:
            say(f"  {error}")


def recover(cluster: Cluster, loads: list[TransactionalLoad], before: int) -> None:
    for topic in TOPICS:
        wait_until(lambda topic=topic: in_sync(cluster, topic), timeout_s=RECOVERY_S)  # type: ignore[misc]
    wait_until(lambda: committed_by(loads) > before + 20, timeout_s=RECOVERY_S)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--java", type=int, choices=range(len(NODES) + 1), default=1, help="how many brokers are Java's"
    )
    parser.add_argument("--controller", choices=("java", "oncelog", "zookeeper"), default="java")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--interval", type=float, help="seconds between faults; without it each one is recovered from")
    given = parser.parse_args()
    if given.folder is not None:
        run(given.folder, given.seconds, given.seed, given.java, given.interval, given.controller)
        return
    with tempfile.TemporaryDirectory(prefix="oncelog-chaos-") as folder:
        run(Path(folder), given.seconds, given.seed, given.java, given.interval, given.controller)


if __name__ == "__main__":
    main()
