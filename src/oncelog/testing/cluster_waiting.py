"""Waiting for what a test of a cluster means: brokers that are registered, leaders, replicas that are in sync."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from oncelog.testing.waiting import AsyncWaits, ClientSettings, Waits, blocking

if TYPE_CHECKING:
    from oncelog.client.admin import AsyncAdmin
    from oncelog.client.cluster import PartitionInfo


class AsyncClusterWaits(AsyncWaits):
    """What `cluster.wait_async` offers beside what a broker has, to be awaited."""

    def __init__(self, settings: ClientSettings, running: Callable[[], set[int]]) -> None:
        super().__init__(settings)
        self._running = running

    async def registered(self, *nodes: int, timeout_s: float | None = None) -> set[int]:
        """Until these brokers serve in the cluster, all that run unless some are named. Returns who does."""
        wanted = set(nodes) or self._running()
        return await self._until(_brokers, lambda found: found >= wanted, f"brokers {sorted(wanted)}", timeout_s)

    async def fenced(self, node: int, *, timeout_s: float | None = None) -> set[int]:
        """Until the controller counts this broker as down. Returns who serves."""
        return await self._until(_brokers, lambda found: node not in found, f"the end of broker {node}", timeout_s)

    async def leader(
        self, topic: str, partition: int = 0, *, other_than: int | None = None, timeout_s: float | None = None
    ) -> int:
        """Until the partition has a leader, another than the given one. Returns it."""
        what = f"a leader of {topic}-{partition}" + ("" if other_than is None else f" other than {other_than}")
        return await self._until(
            lambda admin: _leader(admin, topic, partition),
            lambda leader: leader >= 0 and leader != other_than,
            what,
            timeout_s,
        )

    async def led(self, topic: str, *, timeout_s: float | None = None) -> None:
        """Until every partition of the topic has a leader."""
        await self._until(
            lambda admin: _partitions(admin, topic),
            lambda found: bool(found) and min(one.leader for one in found) >= 0,
            f"leaders of {topic}",
            timeout_s,
        )

    async def in_sync(self, topic: str | None = None, *nodes: int, timeout_s: float | None = None) -> None:
        """Until all replicas of the topic are in sync, or just these nodes are, and every partition has a leader.

        Without a topic, those of all topics.
        """
        await self._until(
            lambda admin: _partitions(admin, topic),
            lambda found: (bool(found) or topic is None) and all(_is_in_sync(one, set(nodes)) for one in found),
            f"in-sync replicas of {topic or 'all topics'}" + (f" on {sorted(nodes)}" if nodes else ""),
            timeout_s,
        )

    async def active_controller(self, *, other_than: int | None = None, timeout_s: float | None = None) -> int:
        """Until a controller is active, another than the given one. Returns its node id."""
        return await self._until(
            _active_controller,
            lambda node: node >= 0 and node != other_than,
            "an active controller" + ("" if other_than is None else f" other than {other_than}"),
            timeout_s,
        )


class ClusterWaits(Waits):
    """What `cluster.wait` offers: the calls of `cluster.wait_async`, which block."""

    registered = blocking(AsyncClusterWaits.registered)
    fenced = blocking(AsyncClusterWaits.fenced)
    leader = blocking(AsyncClusterWaits.leader)
    led = blocking(AsyncClusterWaits.led)
    in_sync = blocking(AsyncClusterWaits.in_sync)
    active_controller = blocking(AsyncClusterWaits.active_controller)


async def _brokers(admin: AsyncAdmin) -> set[int]:
    return {broker.node_id for broker in (await admin.describe_cluster()).brokers}


async def _partitions(admin: AsyncAdmin, topic: str | None) -> list[PartitionInfo]:
    topics = (await admin.list_topics(internal=True)).values()
    return [partition for each in topics if topic in (None, each.name) for partition in each.partitions]


async def _leader(admin: AsyncAdmin, topic: str, partition: int) -> int:
    """-1 while there is none."""
    return next((one.leader for one in await _partitions(admin, topic) if one.partition == partition), -1)


async def _active_controller(admin: AsyncAdmin) -> int:
    return (await admin.describe_quorum()).leader_id


def _is_in_sync(found: PartitionInfo, nodes: set[int]) -> bool:
    return found.leader >= 0 and set(found.in_sync_replicas) == (nodes or set(found.replicas))
