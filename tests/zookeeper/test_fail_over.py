"""Brokers and controllers on ZooKeeper are killed, paused and stopped under transactional load."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import pytest

from oncelog.testing.zookeeper import ZooKeeperEnsemble
from tests.cluster.load import TransactionalLoad
from tests.conformance.conftest import require
from tests.zookeeper.brokers import TOPICS, Nodes, running_nodes

pytestmark = pytest.mark.skipif(
    os.environ.get("ONCELOG_CLUSTER_TESTS") != "all", reason="takes minutes: make test-cluster"
)
ONCELOG, OTHER = 1, 2
JAVA = (2, 3)


@pytest.fixture(params=["three of Oncelog", "one of Oncelog, two of Java"])
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperEnsemble, chroot: str
) -> Iterator[Nodes]:
    java = JAVA if "Java" in request.param else ()
    if java:
        require("kafka")
    with running_nodes(tmp_path_factory.mktemp("brokers"), zookeeper.connect, chroot, java) as made:
        yield made


def test_transactions_survive_every_fault_of_every_kind_of_node(nodes: Nodes) -> None:
    nodes.create_topics()
    controllers = nodes.controllers
    with TransactionalLoad(nodes.cluster, "one", TOPICS) as one, TransactionalLoad(nodes.cluster, "two", TOPICS) as two:
        nodes.settle((one, two))
        for fault in (
            controllers.kill_active,
            partial(nodes.kill, ONCELOG),
            partial(nodes.kill, OTHER),
            partial(nodes.pause, ONCELOG),
            partial(nodes.pause, OTHER),
            controllers.pause_active,
            partial(nodes.stop, ONCELOG),
            partial(nodes.stop, OTHER),
        ):
            fault()
            nodes.settle((one, two))
    nodes.check((one, two))
    assert len(controllers.check_log().writers) >= 3
