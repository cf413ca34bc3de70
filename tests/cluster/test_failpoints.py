"""kill -9 of an Oncelog broker at each failpoint of a commit, as coordinator and as leader, beside a Java broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import ElectionType, KafkaException

from oncelog.testing.broker import BrokerProcess
from tests.cluster.clusters import Cluster, running_cluster
from tests.cluster.load import SteadyReader, TransactionalLoad
from tests.cluster.test_faults import check_reader, check_replicas, check_topics, wait_for_commits
from tests.conformance.conftest import require
from tests.crash.test_failpoints import TRANSACTIONS
from tests.waiting import wait_until

CONTROLLER, JAVA, ONCELOG = 9, 1, 2
TOPICS = ("led-by-java", "led-by-oncelog")
COORDINATING = [name for name in TRANSACTIONS if name.startswith("txn.")]
ABORTING = [name for name in TRANSACTIONS if name not in COORDINATING]
APPENDING = ["log.append.before_write", "log.append.after_write", "log.append.after_indexes"]
HITS = {**dict.fromkeys(COORDINATING, 30), **dict.fromkeys(ABORTING, 100), **dict.fromkeys(APPENDING, 600)}
"""By then it leads and coordinates, and is in the middle of transactions. A follower appends as well, to catch up."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("kafka")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as started:
        started.start_controller(node_id=CONTROLLER, roles="controller")
        started.start_java(JAVA)
        started.start_oncelog(ONCELOG)
        started.create_topic(TOPICS[0], [JAVA, ONCELOG])
        started.create_topic(TOPICS[1], [ONCELOG, JAVA])
        yield started


def give_leaderships_back(cluster: Cluster) -> None:
    def is_done() -> bool:
        try:
            cluster.admin.elect_leaders(ElectionType.PREFERRED).result(120)
        except KafkaException:
            return False
        return (found := cluster.partition(TOPICS[1])) is not None and found.leader == ONCELOG

    wait_until(is_done)


def test_transactions_survive_a_kill_at_each_failpoint_of_a_commit(cluster: Cluster) -> None:
    """Of six ids, some are coordinated by either broker."""
    broker = cluster.oncelog[ONCELOG]
    loads = [TransactionalLoad(cluster, f"failpoints {number}", TOPICS) for number in range(6)]
    reader = SteadyReader(cluster, TOPICS)
    for load in loads:
        load.start()
    with reader:
        for load in loads:
            wait_for_commits(load, 2)
        internal = cluster.admin.list_topics("__transaction_state", timeout=60).topics["__transaction_state"]
        assert {each.replicas[0] for each in internal.partitions.values()} == {JAVA, ONCELOG}, "both coordinate"
        for failpoint, hit in HITS.items():
            if broker.running:
                assert broker.stop(timeout_s=90) == 0
            start_armed(broker, f"{failpoint}@{hit}")
            for topic in TOPICS:
                wait_until(lambda topic=topic: not broker.running or is_in_sync(cluster, topic))  # type: ignore[misc]
            if broker.running:
                give_leaderships_back(cluster)
            wait_until(lambda: not broker.running or any(load.failure for load in loads), timeout_s=120)
            assert not broker.running, (failpoint, [load.failure for load in loads])
            for load in loads:
                wait_for_commits(load, 2)
        broker.start()
        for topic in TOPICS:
            cluster.wait_for_isr(topic, JAVA, ONCELOG)
        for load in loads:
            load.stop()
        check_topics(cluster, TOPICS, [value for load in loads for value in load.committed])
        check_reader(cluster, reader)
    for topic in TOPICS:
        check_replicas(cluster, topic, JAVA, ONCELOG)


def start_armed(broker: BrokerProcess, failpoint: str) -> None:
    """It may be killed before it is ready, as a follower that catches up."""
    try:
        broker.start(extra_arguments=("--failpoint", failpoint))
    except RuntimeError as error:
        assert "exit code -9" in str(error), error


def is_in_sync(cluster: Cluster, topic: str) -> bool:
    found = cluster.partition(topic)
    return found is not None and sorted(found.isrs) == [JAVA, ONCELOG]
