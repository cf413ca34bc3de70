"""Brokers whose disk was lost, on a virtual clock: the controller learns where their replicas are now."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest

from oncelog.core.ids import NodeId
from oncelog.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from tests.unit.server.virtual_cluster import VirtualCluster


@pytest.fixture
def cluster(tmp_path: Path) -> VirtualCluster:
    return VirtualCluster(tmp_path, 2, replica_lag_time_max_ms="3000", replica_socket_timeout_ms="1500").start()


def lose_disk(cluster: VirtualCluster, node: int) -> None:
    """The broker is killed, and started again on an empty folder."""
    cluster.nodes[node].kill()
    cluster.controller.fence(node)
    shutil.rmtree(cluster.nodes[node].folder)
    cluster.nodes[node].start()
    cluster.until(lambda: cluster.controller.is_active(node))


def directories(cluster: VirtualCluster, topic: str) -> dict[int, UUID]:
    image = cluster.controller.image
    partition = image.topics[image.topic_ids[topic]].partitions[0]
    return dict(zip(partition.replicas, partition.directories, strict=True))


def test_a_broker_on_a_new_disk_tells_the_controller_where_its_replicas_are(cluster: VirtualCluster) -> None:
    """A controller elects nobody whose replica is in a directory that is gone."""
    cluster.controller.create_topic("orders", [1, 2], [2, 1])
    cluster.until(cluster.is_known_to_all)
    before = directories(cluster, "orders")
    lose_disk(cluster, 1)
    cluster.until(lambda: sorted(cluster.isr("orders")) == [1, 2])
    cluster.until(lambda: directories(cluster, "orders")[1] != before[1], within_ms=3000)
    assert directories(cluster, "orders") == {
        1: cluster.controller.image.brokers[NodeId(1)].directories[0],
        2: before[2],
    }
    cluster.nodes[2].kill()
    cluster.controller.fence(2)
    assert cluster.leader("orders") == 1
    cluster.calls.clear()
    cluster.clock.advance_ms(5000)
    assert not [call for call in cluster.calls if isinstance(call[2], AssignReplicasToDirsRequest)]


def test_a_broker_that_has_lost_the_only_records_in_sync_is_not_made_electable(cluster: VirtualCluster) -> None:
    cluster.controller.create_topic("orders", [1, 2])
    cluster.until(cluster.is_known_to_all)
    cluster.nodes[2].kill()
    cluster.controller.fence(2)
    before = directories(cluster, "orders")
    cluster.nodes[1].kill()
    cluster.controller.fence(1)
    assert cluster.leader("orders") == -1
    shutil.rmtree(cluster.nodes[1].folder)
    cluster.nodes[1].start()
    cluster.until(lambda: cluster.controller.is_active(1))
    cluster.clock.advance_ms(5000)
    assert directories(cluster, "orders") == before
