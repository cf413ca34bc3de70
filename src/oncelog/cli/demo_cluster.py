"""The cluster of `oncelog demo --brokers`: who leads, coordinates and controls now, killed, and started again."""

from __future__ import annotations

from typing import Final

from oncelog.client.admin import Admin
from oncelog.core.errors import KafkaError
from oncelog.spark.demo.chaos import DemoFailed
from oncelog.spark.demo.pipeline import Topics
from oncelog.testing import Cluster, TimedOut

QUERY: Final = "exactly-once"
WAIT_S: Final = 60.0


class ClusterNodes:
    """A node that was killed comes back when another has taken its place; the next kill waits for in-sync replicas."""

    def __init__(self, cluster: Cluster, topics: Topics) -> None:
        self._cluster = cluster
        self._topic = topics.enriched(QUERY)
        self._transactional_id = topics.query_id(QUERY)
        self._killed = ("", -1)

    @property
    def lanes(self) -> list[str]:
        return [*self._names("broker"), *self._names("controller")]

    def _names(self, kind: str) -> list[str]:
        return [name for name in self._cluster.nodes if name.startswith(kind)]

    def kill(self, kind: str) -> str | None:
        try:
            node = self._find(kind)
        except (TimedOut, KafkaError):
            node = None  # nobody knows at the moment; the demo comes again
        if node is None:
            return None
        lane = f"controller {node}" if kind == "controller" else f"broker {node}"
        self._cluster.nodes[lane].kill()
        self._killed = (kind, node)
        return lane

    def _find(self, kind: str) -> int | None:
        """The leader of an output partition, the coordinator of the query's transactions, the active controller."""
        if kind == "leader":
            return self._cluster.wait.leader(self._topic, timeout_s=WAIT_S)
        if kind == "controller":
            return self._cluster.wait.active_controller(timeout_s=WAIT_S)
        with self._cluster.admin() as admin:
            return self._coordinator(admin)

    def _coordinator(self, admin: Admin) -> int | None:
        found = [each for each in admin.list_transactions() if each.transactional_id == self._transactional_id]
        return found[0].coordinator_id if found else None

    def revive(self, lane: str) -> None:
        try:
            self._await_successor()
            self._cluster.nodes[lane].start(timeout_s=WAIT_S)
            self._cluster.wait.registered(timeout_s=WAIT_S)
            self._cluster.wait.in_sync(timeout_s=WAIT_S)
        except (TimedOut, KafkaError, RuntimeError) as error:
            raise DemoFailed(f"after the kill of {lane}: {error}") from error

    def _await_successor(self) -> None:
        kind, node = self._killed
        if kind != "controller":
            self._cluster.wait.leader(self._topic, other_than=node, timeout_s=WAIT_S)
            self._cluster.wait.fenced(node, timeout_s=WAIT_S)
        elif len(self._cluster.controllers) > 1:
            self._cluster.wait.active_controller(other_than=node, timeout_s=WAIT_S)
