"""Brokers of either kind are killed, stopped and paused under transactional load: nothing is lost, doubled or torn."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.cluster.clusters import Cluster, log_bytes, running_cluster
from tests.cluster.load import LAST, SteadyReader, TransactionalLoad
from tests.conformance.conftest import require
from tests.waiting import wait_until

CONTROLLER, JAVA, ONCELOG = 9, 1, 2
Fault = Callable[[Cluster, Sequence[str]], None]


@pytest.fixture(scope="module", params=["controller of Kafka", "controller of Oncelog"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("kafka")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as started:
        if request.param == "controller of Kafka":
            started.start_controller(node_id=CONTROLLER, roles="controller")
        else:
            started.start_own_controller(node_id=CONTROLLER)
        started.start_java(JAVA)
        started.start_oncelog(ONCELOG)
        yield started


def stop_oncelog(cluster: Cluster, topics: Sequence[str]) -> None:
    cluster.oncelog[ONCELOG].stop()
    wait_for_leader(cluster, topics, JAVA)
    cluster.oncelog[ONCELOG].start()


def kill_oncelog(cluster: Cluster, topics: Sequence[str]) -> None:
    cluster.oncelog[ONCELOG].kill()
    wait_for_leader(cluster, topics, JAVA)
    cluster.oncelog[ONCELOG].start()


def pause_oncelog(cluster: Cluster, topics: Sequence[str]) -> None:
    """It is fenced meanwhile, and believes that it leads when it goes on."""
    with cluster.paused(ONCELOG):
        wait_for_leader(cluster, topics, JAVA, on=cluster.java[JAVA].bootstrap_servers)


def pause_java(cluster: Cluster, topics: Sequence[str]) -> None:
    with cluster.paused(JAVA):
        wait_for_leader(cluster, topics, ONCELOG, on=cluster.oncelog[ONCELOG].bootstrap_servers)


def kill_controller(cluster: Cluster, topics: Sequence[str]) -> None:
    """Brokers go on without it, and with the next one."""
    cluster.kill_controller()
    before = [cluster.partition(topic) for topic in topics]
    assert all(before)
    cluster.restart_controller()
    cluster.create_topic(f"{topics[0]}-after", [ONCELOG, JAVA])


def stop_java(cluster: Cluster, topics: Sequence[str]) -> None:
    cluster.java[JAVA].stop()
    wait_for_leader(cluster, topics, ONCELOG)
    cluster.java[JAVA].start()


def kill_java(cluster: Cluster, topics: Sequence[str]) -> None:
    cluster.java[JAVA].kill()
    wait_for_leader(cluster, topics, ONCELOG)
    cluster.java[JAVA].start()


def wait_for_leader(cluster: Cluster, topics: Sequence[str], leader: int, on: str | None = None) -> None:
    for topic in topics:
        cluster.wait_for_leader(topic, leader, on=on)


def wait_for_commits(load: TransactionalLoad, count: int) -> None:
    wanted = len(load.committed) + count
    wait_until(lambda: len(load.committed) >= wanted or load.failure, timeout_s=120)


def test_a_broker_stops_although_no_controller_is_there(cluster: Cluster) -> None:
    cluster.kill_controller()
    started_s = time.monotonic()
    assert cluster.oncelog[ONCELOG].stop(timeout_s=150) == 0
    assert time.monotonic() - started_s < 120
    assert "without moving its leaderships away" in cluster.oncelog[ONCELOG].log_path.read_text()
    cluster.restart_controller()
    cluster.oncelog[ONCELOG].start()


@pytest.mark.parametrize(
    "fault", [stop_oncelog, kill_oncelog, pause_oncelog, stop_java, kill_java, pause_java, kill_controller]
)
def test_transactions_go_on_through_a_fault(cluster: Cluster, fault: Fault) -> None:
    topics = [f"{fault.__name__}-{leader}" for leader in (JAVA, ONCELOG)]
    cluster.create_topic(topics[0], [JAVA, ONCELOG])
    cluster.create_topic(topics[1], [ONCELOG, JAVA])
    loads = [TransactionalLoad(cluster, f"{fault.__name__} {number}", topics) for number in range(3)]
    reader = SteadyReader(cluster, topics)
    with reader, loads[0], loads[1], loads[2]:
        for load in loads:
            wait_for_commits(load, 5)
        fault(cluster, topics)
        for topic in topics:
            cluster.wait_for_isr(topic, JAVA, ONCELOG)
        for load in loads:
            wait_for_commits(load, 5)
        for load in loads:
            load.stop()
        check_topics(cluster, topics, [value for load in loads for value in load.committed])
        check_reader(cluster, reader)
    for topic in topics:
        check_replicas(cluster, topic, JAVA, ONCELOG)


def check_topics(cluster: Cluster, topics: Sequence[str], committed: list[str]) -> None:
    """All of these topics were written to in each transaction: it is on all of them, or on none."""
    found = {topic: check_topic(cluster, topic, committed) for topic in topics}
    everywhere = set.intersection(*found.values())
    torn = {topic: sorted(values - everywhere) for topic, values in found.items() if values - everywhere}
    assert torn == {}, "on these topics only"


def check_topic(cluster: Cluster, topic: str, committed: list[str]) -> set[str]:
    """Of a transaction whose commit got no answer, nobody knows the outcome: it may be there, once.

    Returns what was found.
    """
    last = LAST.decode()
    producer = cluster.producer()
    producer.produce(topic, LAST, partition=0)
    assert producer.flush(180) == 0
    found = [value.decode() for value in cluster.read_until(topic, last)]
    counts = Counter(found)
    assert {value: counts[value] for value in committed if counts[value] != 1} == {}, f"of {topic}, lost or doubled"
    assert {value: count for value, count in counts.items() if count != 1} == {}, f"of {topic}, doubled"
    aborted = [value for value in found if value != last and int(value.split()[-1]) % 3 == 0]
    assert aborted == []
    return set(found)


def check_reader(cluster: Cluster, reader: SteadyReader) -> None:
    """What a consumer has read through all faults is what another one finds afterwards, at the same offsets."""
    reader.read_up_to_the_last()
    with SteadyReader(cluster, reader.topics) as another:
        another.read_up_to_the_last()
    assert reader.found == another.found


def check_replicas(cluster: Cluster, topic: str, *nodes: int) -> None:
    wait_until(lambda: len({log_bytes(cluster, node, f"{topic}-0") for node in nodes}) == 1)
