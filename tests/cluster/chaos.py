"""Transactional load on one Java and two Oncelog brokers, with a fault every few seconds, for as long as asked for.

    python -m tests.cluster.chaos --seconds 600 --seed 1

Three replicas of everything, two of them in sync at least. At the end every committed transaction is there once, on all
topics, no aborted one is, and the replicas are equal.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster import clusters
from tests.cluster.clusters import Cluster, running_cluster
from tests.cluster.load import TransactionalLoad
from tests.cluster.test_faults import check_replicas, check_topic
from tests.waiting import wait_until

CONTROLLER, JAVA, ONCELOGS = 9, 1, (2, 3)
NODES = (JAVA, *ONCELOGS)
TOPICS = tuple(f"chaos-{node}" for node in NODES)


def one_fault(cluster: Cluster, chance: random.Random) -> str:
    node, kind = chance.choice(NODES), chance.choice(("kill", "stop", "pause"))
    if kind == "pause":
        pid = cluster.java[node].pid if node in cluster.java else cluster.oncelog[node].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        time.sleep(chance.uniform(0.2, 6))
        os.kill(pid, signal.SIGCONT)
    elif node in cluster.java:
        server = cluster.java[node]
        (server.kill9 if kind == "kill" else server.stop)()
        time.sleep(chance.uniform(0, 4))
        server.start()
    else:
        process = cluster.oncelog[node]
        if kind == "kill":
            process.kill()
        else:
            assert process.stop(timeout_s=70) == 0
        time.sleep(chance.uniform(0, 4))
        process.start(timeout_s=90)
    return f"{kind} {node}"


def in_sync(cluster: Cluster, topic: str) -> bool:
    found = cluster.partition(topic)
    return found is not None and sorted(found.isrs) == sorted(NODES)


def committed_by(loads: list[TransactionalLoad]) -> int:
    return sum(len(load.committed) for load in loads)


def run(folder: Path, seconds: float, seed: int) -> None:
    chance = random.Random(seed)
    clusters.COMMON.update({"offsets.topic.replication.factor": "3", "transaction.state.log.replication.factor": "3"})
    clusters.COMMON["transaction.state.log.min.isr"] = "2"
    with running_cluster(folder) as cluster:
        cluster.start_controller(node_id=CONTROLLER, roles="controller")
        cluster.start_java(JAVA)
        for node in ONCELOGS:
            cluster.start_oncelog(node)
        for number, topic in enumerate(TOPICS):
            replicas = [*NODES[number:], *NODES[:number]]
            cluster.create_topic(topic, replicas, min_insync_replicas="2")
        loads = [TransactionalLoad(cluster, f"chaos {number}", TOPICS) for number in range(4)]
        until = time.monotonic() + seconds
        faults = 0
        with loads[0], loads[1], loads[2], loads[3]:
            while time.monotonic() < until:
                before = committed_by(loads)
                what = one_fault(cluster, chance)
                faults += 1
                for topic in TOPICS:
                    wait_until(lambda topic=topic: in_sync(cluster, topic), timeout_s=120)  # type: ignore[misc]
                wait_until(lambda before=before: committed_by(loads) > before + 20, timeout_s=120)  # type: ignore[misc]
                say(f"{what}: {committed_by(loads)} committed")
        committed = [value for load in loads for value in load.committed]
        for topic in TOPICS:
            check_topic(cluster, topic, committed)
            check_replicas(cluster, topic, *NODES)
        errors = [error for load in loads for error in load.errors]
        say(f"{faults} faults, {len(committed)} transactions committed, all of them there once; {len(errors)} errors")
        for error in errors[:10]:
            say(f"  {error}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        run(arguments.folder, arguments.seconds, arguments.seed)
        return
    with tempfile.TemporaryDirectory(prefix="oncelog-chaos-") as folder:
        run(Path(folder), arguments.seconds, arguments.seed)


if __name__ == "__main__":
    main()
