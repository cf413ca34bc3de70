"""Replication quotas: a replica that is being moved does not take more than it may; one that is in sync is not held."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.protocol.messages.cluster_metadata import ConfigRecord
from tests.unit.server.test_cluster_members import end_offset
from tests.unit.server.virtual_cluster import VirtualCluster

RATE = 20_000
RECORD = b"x" * 10_000


@pytest.fixture
def new_cluster(tmp_path: Path) -> Callable[..., VirtualCluster]:
    return lambda nodes=2, **settings: VirtualCluster(tmp_path, nodes, **settings).start()


def throttle(cluster: VirtualCluster, side: str, replicas: str, rate: int = RATE) -> None:
    cluster.controller.write(
        ConfigRecord(resource_type=4, resource_name="", name=f"{side}.replication.throttled.rate", value=str(rate)),
        ConfigRecord(
            resource_type=2, resource_name="orders", name=f"{side}.replication.throttled.replicas", value=replicas
        ),
    )
    cluster.until(cluster.is_known_to_all)


def fetch_lag(cluster: VirtualCluster) -> int:
    replication = cluster.nodes[2].running.replication
    assert replication is not None
    return replication.figures().fetch_lag_max


def moving(new_cluster: Callable[..., VirtualCluster], side: str, replicas: str) -> VirtualCluster:
    """Forty records on the first broker, and a second one that is to have them, too."""
    cluster = new_cluster(replica_fetch_max_bytes="10000")
    cluster.controller.create_topic("orders", [1])
    cluster.until(cluster.is_known_to_all)
    for _ in range(40):
        assert cluster.result(cluster.nodes[1].produce("orders", RECORD)).error_code == 0
    throttle(cluster, side, replicas)
    cluster.controller.change("orders", replicas=[1, 2], adding_replicas=[2], directories=[uuid.UUID(int=7)] * 2)
    return cluster


@pytest.mark.parametrize(("side", "own"), [("leader", "0:1"), ("follower", "0:2"), ("leader", "*"), ("follower", "*")])
def test_a_replica_that_is_moved_gets_what_the_rate_allows(
    new_cluster: Callable[..., VirtualCluster], side: str, own: str
) -> None:
    cluster = moving(new_cluster, side, own)
    begun_ms = cluster.clock.monotonic_ms()
    cluster.until(lambda: end_offset(cluster, 2, "orders") > 0)
    assert 0 < fetch_lag(cluster) < 40
    cluster.until(lambda: end_offset(cluster, 2, "orders") == 40)
    took_ms = cluster.clock.monotonic_ms() - begun_ms
    cluster.until(lambda: fetch_lag(cluster) == 0)
    # A rate is of the last eleven seconds, so that a burst is let through at the beginning.
    assert 400_000 / RATE / 2 <= took_ms / 1000 <= 60
    cluster.until(lambda: cluster.isr("orders") == [1, 2])


@pytest.mark.parametrize("replicas", ["1:1,1:2", "0:7"])
def test_others_are_not_held_back(new_cluster: Callable[..., VirtualCluster], replicas: str) -> None:
    cluster = moving(new_cluster, "leader", replicas)
    begun_ms = cluster.clock.monotonic_ms()
    cluster.until(lambda: end_offset(cluster, 2, "orders") == 40)
    # Held back it takes ten seconds. A fetch that comes before the leader knows of its follower costs one second.
    assert cluster.clock.monotonic_ms() - begun_ms < 3000


def test_a_replica_that_is_in_sync_is_not_held_back(new_cluster: Callable[..., VirtualCluster]) -> None:
    cluster = new_cluster()
    cluster.controller.create_topic("orders", [1, 2])
    cluster.until(cluster.is_known_to_all)
    for side in ("leader", "follower"):
        throttle(cluster, side, "*", rate=1)
    begun_ms = cluster.clock.monotonic_ms()
    for _ in range(20):
        assert cluster.result(cluster.nodes[1].produce("orders", RECORD)).error_code == 0
    assert cluster.clock.monotonic_ms() - begun_ms < 5000


def test_a_limit_that_is_raised_counts_at_once(new_cluster: Callable[..., VirtualCluster]) -> None:
    cluster = moving(new_cluster, "leader", "*")
    cluster.until(lambda: end_offset(cluster, 2, "orders") > 10)
    cluster.clock.advance_ms(500)
    throttle(cluster, "leader", "*", rate=10_000_000)
    begun_ms = cluster.clock.monotonic_ms()
    cluster.until(lambda: end_offset(cluster, 2, "orders") == 40)
    assert cluster.clock.monotonic_ms() - begun_ms < 3000


def test_a_long_list_of_replicas_is_not_read_with_every_look(new_cluster: Callable[..., VirtualCluster]) -> None:
    cluster = new_cluster()
    cluster.controller.create_topic("orders", [1])
    named = ",".join(f"{number}:1" for number in range(1, 4_700))  # the longest value of a setting
    throttle(cluster, "leader", named)
    replication = cluster.nodes[1].running.replication
    assert replication is not None
    started_s = time.thread_time()
    for _ in range(20_000):
        assert replication.leader_throttle.hold_ms("orders", 0) == 0
    assert time.thread_time() - started_s < 2
