"""What a broker of a cluster tells of its replicas, on a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oncelog.core.steps import at_once
from oncelog.server.metrics_page import read_metrics
from tests.unit.server.virtual_cluster import VirtualCluster


@pytest.fixture
def cluster(tmp_path: Path) -> VirtualCluster:
    cluster = VirtualCluster(
        tmp_path,
        3,
        replica_lag_time_max_ms="2000",
        replica_socket_timeout_ms="1000",
        replica_fetch_max_bytes="1",  # of each fetch a follower gets one batch
        replica_fetch_response_max_bytes="1",
    ).start()
    cluster.controller.create_topic("orders", [1, 2, 3], min_insync_replicas="2")
    cluster.controller.create_topic("bills", [2, 1])
    cluster.until(lambda: figures(cluster, 1)["partition_count"] == 2)
    cluster.clock.advance_ms(1000)
    return cluster


def figures(cluster: VirtualCluster, node: int) -> dict[str, float]:
    """By the ends of their names."""
    prefix = "kafka_server_replica"
    samples = [
        sample
        for metric in at_once(read_metrics(cluster.nodes[node].running)).collect()
        if metric.name.startswith(prefix)
        for sample in metric.samples
    ]
    return {sample.name.partition("manager_")[2]: sample.value for sample in samples}


def test_leaders_and_replicas_are_counted(cluster: VirtualCluster) -> None:
    found = figures(cluster, 1)
    assert (found["leader_count"], found["partition_count"]) == (1, 2)
    assert (found["under_replicated_partitions"], found["under_min_isr_partition_count"], found["max_lag"]) == (0, 0, 0)
    assert figures(cluster, 3)["leader_count"] == 0


def test_replicas_that_fall_behind_and_come_back_are_counted(cluster: VirtualCluster) -> None:
    for follower in (2, 3):
        cluster.cut(1, follower)
    assert cluster.result(cluster.nodes[1].produce("orders", b"a", acks=1)).error_code == 0
    before = figures(cluster, 1)
    cluster.until(lambda: cluster.isr("orders") == [1], within_ms=20_000)
    cluster.clock.advance_ms(5000)
    found = figures(cluster, 1)
    assert (found["under_replicated_partitions"], found["under_min_isr_partition_count"]) == (1, 1)
    assert found["isr_shrinks_total"] - before["isr_shrinks_total"] in (1, 2), "both at once, or one after the other"
    assert found["isr_expands_total"] == before["isr_expands_total"], "nobody has fetched"
    before = found
    cluster.heal()
    cluster.until(lambda: sorted(cluster.isr("orders")) == [1, 2, 3], within_ms=20_000)
    cluster.until(cluster.is_known_to_all)
    found = figures(cluster, 1)
    assert (found["under_replicated_partitions"], found["under_min_isr_partition_count"]) == (0, 0)
    assert found["isr_expands_total"] - before["isr_expands_total"] in (1, 2)


def test_the_lag_of_a_follower_is_shown(cluster: VirtualCluster) -> None:
    cluster.cut(1, 3)
    for _ in range(5):
        assert cluster.result(cluster.nodes[1].produce("orders", b"a", acks=1)).error_code == 0
    cluster.until(lambda: 3 not in cluster.isr("orders"), within_ms=20_000)
    cluster.until(lambda: figures(cluster, 2)["max_lag"] == 0)
    cluster.heal()
    lags = []

    def is_back() -> bool:
        lags.append(figures(cluster, 3)["max_lag"])
        return sorted(cluster.isr("orders")) == [1, 2, 3]

    cluster.until(is_back, within_ms=20_000)
    assert max(lags) == 4
    assert figures(cluster, 3)["max_lag"] == 0


def test_partitions_that_are_moved_are_not_under_replicated_for_that(cluster: VirtualCluster) -> None:
    """As in Kafka: a move would be an alarm, and a replica that is missing meanwhile would be none."""
    cluster.cut(2, 3)
    directories = [cluster.controller._directory(node) for node in (2, 3, 1)]
    cluster.controller.change(
        "bills", replicas=[2, 3, 1], removing_replicas=[1], adding_replicas=[3], directories=directories
    )
    cluster.until(cluster.is_known_to_all)
    found = figures(cluster, 2)
    assert (found["reassigning_partitions"], found["under_replicated_partitions"]) == (1, 0)
    cluster.controller.change("bills", isr=[2])
    cluster.until(cluster.is_known_to_all)
    assert figures(cluster, 2)["under_replicated_partitions"] == 1
    assert figures(cluster, 1)["reassigning_partitions"] == 0


def test_partitions_at_their_minimum_are_counted(cluster: VirtualCluster) -> None:
    assert figures(cluster, 1)["at_min_isr_partition_count"] == 0
    cluster.cut(1, 3)
    cluster.cut(2, 3)
    cluster.controller.change("orders", isr=[1, 2])
    cluster.until(cluster.is_known_to_all)
    found = figures(cluster, 1)
    assert (found["at_min_isr_partition_count"], found["under_min_isr_partition_count"]) == (1, 0)


def test_replicas_that_cannot_be_used_are_counted(cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert figures(cluster, 3)["offline_replica_count"] == 0

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("the disk does not answer")

    with monkeypatch.context() as failing:
        failing.setattr(cluster.nodes[3].running.log_dir, "create_log", refuse)
        cluster.controller.create_topic("stock", [1, 3])
        cluster.until(cluster.is_known_to_all)
        assert figures(cluster, 3)["offline_replica_count"] == 1
    cluster.clock.advance_ms(2000)
    assert figures(cluster, 3)["offline_replica_count"] == 0
