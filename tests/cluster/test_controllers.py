"""Three controllers of Apache Kafka: the active one is killed, and then a broker, under transactional load."""

from __future__ import annotations

from pathlib import Path

from oncelog.client import Admin
from tests.cluster.clusters import Cluster, running_cluster
from tests.cluster.load import TransactionalLoad
from tests.cluster.test_faults import check_replicas, check_topics, wait_for_commits
from tests.conformance.conftest import require
from tests.waiting import wait_until

CONTROLLERS = (7, 8, 9)
FIRST, SECOND = 1, 2
TOPICS = ("orders", "bills")


def active_controller(cluster: Cluster) -> int:
    with Admin({"bootstrap.servers": cluster.bootstrap_servers}) as admin:
        return admin.describe_quorum().leader_id


def test_brokers_follow_the_next_active_controller(tmp_path: Path) -> None:
    require("kafka")
    with running_cluster(tmp_path) as cluster:
        cluster.start_controllers(*CONTROLLERS)
        for node in (FIRST, SECOND):
            cluster.start_oncelog(node)
        cluster.create_topic("orders", [FIRST, SECOND])
        cluster.create_topic("bills", [SECOND, FIRST])
        with TransactionalLoad(cluster, "load", TOPICS) as load:
            wait_for_commits(load, 5)
            killed = active_controller(cluster)
            cluster.controllers[killed].kill()
            wait_until(lambda: active_controller(cluster) not in (killed, -1), timeout_s=90)
            wait_for_commits(load, 5)
            # Only a controller that hears heartbeats of the second one gives it the leadership.
            cluster.oncelog[FIRST].kill()
            cluster.wait_for_leader("orders", SECOND)
            wait_for_commits(load, 5)
            cluster.oncelog[FIRST].start()
            cluster.controllers[killed].start()
            for topic in TOPICS:
                cluster.wait_for_isr(topic, FIRST, SECOND)
        check_topics(cluster, TOPICS, load.committed)
        for topic in TOPICS:
            check_replicas(cluster, topic, FIRST, SECOND)
