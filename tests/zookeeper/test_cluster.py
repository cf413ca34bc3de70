"""A cluster of `oncelog.testing` with several controllers, which starts a ZooKeeper of its own."""

from __future__ import annotations

import os

import pytest

import oncelog.testing


@pytest.mark.skipif(os.environ.get("ONCELOG_CLUSTER_TESTS") != "all", reason="takes half a minute: make test-cluster")
def test_the_active_controller_is_killed_and_stopped_and_topics_can_be_made() -> None:
    with oncelog.testing.cluster(brokers=2, controllers=2) as cluster:
        first = cluster.wait.active_controller()
        before = cluster.create_topic()
        cluster.controllers[first].kill()
        second = cluster.wait.active_controller(other_than=first)
        assert {first, second} == set(cluster.controllers)
        after = cluster.create_topic()
        leader = cluster.wait.leader(after)
        cluster.brokers[leader].kill()
        cluster.wait.leader(after, other_than=leader)
        cluster.controllers[first].start()
        cluster.controllers[second].stop()
        assert cluster.wait.active_controller(other_than=second) == first
        with cluster.admin() as admin:
            assert {before, after} <= set(admin.list_topics())
