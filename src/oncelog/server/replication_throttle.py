"""Replication quotas (KIP-73): what moving replicas may take per second, as leader and as follower.

`leader.replication.throttled.replicas` and `follower.replication.throttled.replicas` of a topic name the replicas,
`PARTITION:BROKER` or `*`; `*.replication.throttled.rate` of the broker is the limit for all of them together. A replica
that is in sync is never held back.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from oncelog.core.config import LONG_MAX
from oncelog.security.quotas import Rate

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

_HELD_MS_MAX: Final = 1_000
"""Then it is looked again: the limit may have been raised."""


class ReplicationThrottle:
    def __init__(self, broker: Broker, side: Literal["leader", "follower"]) -> None:
        self._broker = broker
        self._rate_key = f"{side}.replication.throttled.rate"
        self._replicas_key = f"{side}.replication.throttled.replicas"
        self._rate = Rate(0)

    def record(self, topic: str, partition: int, size_bytes: int) -> None:
        if size_bytes and self._is_throttled(topic, partition):
            self._rate.record(size_bytes, self._broker.steady_ms())

    def hold_ms(self, topic: str, partition: int) -> int:
        """For how long nothing may be sent or fetched of a replica that is not in sync; 0 if there is room."""
        if not self._is_throttled(topic, partition):
            return 0
        limit = self._broker.settings.integer(self._rate_key)
        if limit == LONG_MAX:
            return 0
        return min(_HELD_MS_MAX, self._rate.throttle_ms(max(1, limit), self._broker.steady_ms()))

    def _is_throttled(self, topic: str, partition: int) -> bool:
        known = self._broker.metadata.topics.get(topic)
        named = None if known is None else known.configs.get(self._replicas_key)
        if not named:
            return False
        entries = _entries(named)
        return "*" in entries or f"{partition}:{self._broker.node_id}" in entries


@lru_cache(maxsize=4096)
def _entries(named: str) -> frozenset[str]:
    """Kept: a topic may name thousands of replicas, and each is looked up with every fetch."""
    return frozenset(entry.strip() for entry in named.split(","))
