"""Random histories in which ZooKeeper's data is replaced by an older copy, and a new controller goes on from it."""

from __future__ import annotations

from random import Random

import pytest

from oncelog.cluster.zookeeper import Create, Delete
from oncelog.cluster.zookeeper_nodes import CONTROLLER
from tests.metadata_log_simulation.fake_zookeeper import SESSION_MS
from tests.unit.cluster.test_zookeeper_log import Node, World


class History:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World()
        self.nodes = [self.world.node(number) for number in (1, 2, 3)]
        self.copies = [self.copy()]

    def copy(self) -> dict[str, bytes]:
        ensemble = self.world.ensemble
        found = {path: ensemble.read(path) for path in ensemble.paths() if path != CONTROLLER}
        return {path: node.data for path, node in found.items() if node is not None}

    def work(self, count: int, nodes: list[Node]) -> None:
        for _ in range(count):
            active = next((node for node in nodes if node.log.is_active), None)
            kind = self.random.random()
            if active is None:
                self.world.run(2000)
            elif kind < 0.6:
                active.appended(*(str(self.random.random()) for _ in range(self.random.choice((1, 1, 2, 3)))))
            elif kind < 0.8:
                active.snapshot()
            elif kind < 0.9 and nodes is self.nodes:
                self.copies.append(self.copy())
            elif kind < 0.95 and nodes is self.nodes:
                position = self.random.randrange(3)
                nodes[position].log.close()
                self.world.run()
                nodes[position] = self.world.node(position + 1)
            self.world.run(self.random.choice((10, 300)))

    def restore(self) -> Node:
        """While nobody has a connection. Returns a controller that is new."""
        for node in self.nodes:
            node.zookeeper.isolate()
        self.world.run(2 * SESSION_MS)
        ensemble = self.world.ensemble
        for path in sorted(ensemble.paths(), key=len, reverse=True):
            ensemble.commit([Delete(path)], 0)
        for path, data in sorted(self.random.choice(self.copies).items()):
            ensemble.commit([Create(path, data)], 0)
        fresh = self.world.node(4)
        self.world.run(2000)
        return fresh

    def heal(self) -> None:
        for node in self.nodes:
            node.zookeeper.heal()
        self.world.run(2 * SESSION_MS)


def known(node: Node) -> tuple[int, int, int]:
    return node.end_offset, len(node.batches), len(node.snapshots)


@pytest.mark.parametrize("seed", [*range(60), 1161, 1409])
def test_whoever_has_read_more_waits_or_reads_all_of_the_new_log(seed: int) -> None:
    history = History(seed)
    history.work(history.random.randrange(4, 25), history.nodes)
    before = [known(node) for node in history.nodes]
    fresh = history.restore()
    history.work(history.random.randrange(14), [fresh])
    history.heal()
    history.work(history.random.randrange(10), [fresh])
    history.world.run(SESSION_MS)
    assert any(node.log.is_active for node in [fresh, *history.nodes])
    for node, was in zip(history.nodes, before, strict=True):
        assert node.faults == []
        assert node.log.committed.start_offset <= node.log.committed.end_offset
        if node.log.is_active or known(node) != was:
            assert (node.image, node.log.committed.end_offset) == (fresh.image, fresh.log.committed.end_offset)
