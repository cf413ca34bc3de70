"""A leader takes records with acks=1 that its follower never gets, and is replaced: back again, it cuts them off."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.cluster.clusters import Cluster, log_bytes, running_cluster, send
from tests.conformance.conftest import require
from tests.waiting import wait_until

CONTROLLER, JAVA, ONCELOG = 9, 1, 2
COUNT = 30
PATIENT = {"broker.session.timeout.ms": "30000", "replica.lag.time.max.ms": "90000"}
"""A follower that is paused is in sync for so long."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("kafka")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as started:
        started.start_controller(node_id=CONTROLLER, roles="controller", properties=PATIENT)
        started.start_java(JAVA, properties=PATIENT)
        started.start_oncelog(ONCELOG, **PATIENT)
        yield started


@pytest.mark.parametrize(("leader", "follower"), [(ONCELOG, JAVA), (JAVA, ONCELOG)])
def test_what_only_an_old_leader_has_is_cut_off(cluster: Cluster, leader: int, follower: int) -> None:
    topic = f"diverging-{leader}"
    cluster.create_topic(topic, [leader, follower])
    both = [f"both {number}" for number in range(10)]
    send(cluster.producer(), topic, both)
    wait_until(lambda: log_bytes(cluster, leader, f"{topic}-0") == log_bytes(cluster, follower, f"{topic}-0"))
    hasty = cluster.producer(acks="1", bootstrap_servers=cluster.nodes[leader].bootstrap_servers)
    hasty.list_topics(topic, timeout=60)
    # The follower is back before the controller has missed it, and so is still in sync.
    started_s = time.monotonic()
    with cluster.paused(follower):
        for number in range(COUNT):
            send(hasty, topic, [f"lost {number}"])
        cluster.nodes[leader].pause()
    assert time.monotonic() - started_s < 28, "the machine is too busy: the follower was fenced"
    try:
        cluster.wait_for_leader(topic, follower, on=cluster.nodes[follower].bootstrap_servers)
        new = [f"new {number}" for number in range(10)]
        send(cluster.producer(bootstrap_servers=cluster.nodes[follower].bootstrap_servers), topic, new)
    finally:
        cluster.nodes[leader].resume()
    cluster.wait_for_isr(topic, leader, follower)
    wait_until(lambda: log_bytes(cluster, leader, f"{topic}-0") == log_bytes(cluster, follower, f"{topic}-0"))
    values = [value.decode() for value in cluster.read_until(topic, new[-1])]
    kept = len(values) - len(both) - len(new)
    assert values == [*both, *(f"lost {number}" for number in range(kept)), *new]
    assert kept < COUNT, "nothing diverged"
