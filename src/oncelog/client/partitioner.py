"""Which partition a record goes to: by key with Kafka's murmur2, else to one partition until its batch is sent."""

from __future__ import annotations

import random

from oncelog.core.hashing import partition_for_key


class Partitioner:
    """Records without a key stick to one partition per topic until `rotate`: fewer and fuller batches (KIP-480)."""

    def __init__(self, *, ignore_keys: bool = False) -> None:
        self._ignore_keys = ignore_keys
        self._sticky: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, partition_count: int) -> int:
        if key is not None and not self._ignore_keys:
            return partition_for_key(key, partition_count)
        chosen = self._sticky.get(topic, -1)
        if not 0 <= chosen < partition_count:
            chosen = self._sticky[topic] = random.randrange(partition_count)
        return chosen

    def rotate(self, topic: str, partition: int, partition_count: int) -> None:
        """The batch of a partition is in flight: choose another one for the next."""
        if self._sticky.get(topic) == partition and partition_count > 1:
            step = random.randrange(1, partition_count)
            self._sticky[topic] = (partition + step) % partition_count
