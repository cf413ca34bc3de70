"""Leaders in a cluster whose disk fails, on a virtual clock: others lead instead, if there are others."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from oncelog.cluster.partition import Partition
from oncelog.core.errors import ErrorCode
from oncelog.server.disk_watch import PATIENCE_MS
from tests.unit.server.virtual_cluster import VirtualCluster
from tests.unit.storage.faulty_disk import FaultyDisk


@pytest.fixture
def cluster(tmp_path: Path) -> VirtualCluster:
    cluster = VirtualCluster(tmp_path, 3, replica_lag_time_max_ms="3000", replica_socket_timeout_ms="1500").start()
    cluster.controller.create_topic("orders", [1, 2, 3], min_insync_replicas="2")
    cluster.until(cluster.is_known_to_all)
    cluster.until(lambda: produce(cluster, 1) == 0)
    return cluster


def produce(cluster: VirtualCluster, node: int, topic: str = "orders") -> int:
    code: int = cluster.result(cluster.nodes[node].produce(topic, b"a")).error_code
    return code


def partition_of(cluster: VirtualCluster, topic: str = "orders") -> Partition:
    partition = cluster.nodes[1].running.partitions.opened(topic, 0)
    assert partition is not None
    return partition


def reason_of_the_end(cluster: VirtualCluster) -> str | None:
    membership = cluster.nodes[1].running.membership
    assert membership is not None
    cluster.until(lambda: membership.ended.done)
    return membership.ended.value


def break_log(partition: Partition) -> None:
    partition.log._health.fail("a write failed", OSError(errno.EIO, "Input/output error"))


def test_a_leader_whose_log_is_broken_gives_its_leaderships_up_and_ends(cluster: VirtualCluster) -> None:
    break_log(partition_of(cluster))
    assert produce(cluster, 1) == ErrorCode.KAFKA_STORAGE_ERROR
    cluster.until(lambda: cluster.leader("orders") != 1, within_ms=2000)
    cluster.until(lambda: produce(cluster, cluster.leader("orders")) == 0)
    reason = reason_of_the_end(cluster)
    assert reason is not None
    assert "orders-0" in reason and "Input/output error" in reason and "start the broker again" in reason
    assert not cluster.controller.is_active(1)


def test_a_full_disk_is_given_some_time(cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk(monkeypatch, cluster.nodes[1].folder)
    refused_ms = []
    for outage_ms in (PATIENCE_MS // 2, 3 * PATIENCE_MS):
        disk.fail(first=1)
        begin_ms = cluster.clock.monotonic_ms()
        while cluster.leader("orders") == 1 and cluster.clock.monotonic_ms() < begin_ms + outage_ms:
            assert produce(cluster, 1) in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            cluster.clock.advance_ms(500)
        refused_ms.append(cluster.clock.monotonic_ms() - begin_ms)
        disk.heal()
        if cluster.leader("orders") == 1:
            assert produce(cluster, 1) == 0
            cluster.clock.advance_ms(2 * PATIENCE_MS)
            assert cluster.leader("orders") == 1, "nothing has been refused since"
    assert cluster.leader("orders") != 1
    assert refused_ms[1] < 2 * PATIENCE_MS
    assert "orders-0" in (reason_of_the_end(cluster) or "")


def test_one_append_that_is_refused_is_no_reason(cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk(monkeypatch, cluster.nodes[1].folder)
    disk.fail(first=1)
    assert produce(cluster, 1) == ErrorCode.KAFKA_STORAGE_ERROR
    disk.heal()
    cluster.clock.advance_ms(3 * PATIENCE_MS)
    assert cluster.leader("orders") == 1


def test_a_leader_that_nobody_could_take_the_place_of_stays(cluster: VirtualCluster) -> None:
    cluster.controller.create_topic("lone", [1])
    cluster.until(cluster.is_known_to_all)
    assert produce(cluster, 1, "lone") == 0
    break_log(partition_of(cluster, "lone"))
    cluster.clock.advance_ms(3 * PATIENCE_MS)
    assert cluster.leader("lone") == cluster.leader("orders") == 1
    assert produce(cluster, 1) == 0


def test_a_follower_with_a_broken_log_stays_and_leads_other_partitions(cluster: VirtualCluster) -> None:
    cluster.controller.create_topic("followed", [2, 1])
    cluster.until(cluster.is_known_to_all)
    break_log(partition_of(cluster, "followed"))
    cluster.clock.advance_ms(3 * PATIENCE_MS)
    assert cluster.leader("orders") == 1


def test_a_leader_that_cannot_take_its_role_gives_it_up(
    cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(monkeypatch, cluster.nodes[1].folder)
    disk.fail(first=1)
    cluster.controller.change("orders", leader=1)
    cluster.clock.advance_ms(PATIENCE_MS // 2)
    assert cluster.leader("orders") == 1
    cluster.until(lambda: cluster.leader("orders") != 1, within_ms=PATIENCE_MS)
    disk.heal()
    assert "orders-0" in (reason_of_the_end(cluster) or "")


def test_a_role_is_taken_when_the_disk_allows_it(cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk(monkeypatch, cluster.nodes[1].folder)
    disk.fail(first=1)
    cluster.controller.change("orders", leader=1)
    cluster.until(cluster.is_known_to_all)
    replication = cluster.nodes[1].running.replication
    assert replication is not None
    assert [*map(str, replication.roles_not_taken)] == ["orders-0"]
    disk.heal()
    cluster.clock.advance_ms(1100)
    assert replication.roles_not_taken == []
    assert partition_of(cluster).leader_epoch == 1
    assert produce(cluster, 1) == 0
