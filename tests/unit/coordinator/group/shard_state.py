"""What a group shard has in memory, for tests that compare two shards or look behind its answers."""

from __future__ import annotations

from copy import deepcopy

from oncelog.coordinator.group.machine import GroupShard
from oncelog.coordinator.outcome import Outcome


def durable_state(shard: GroupShard) -> tuple[object, ...]:
    """Everything that a replay of the log must rebuild: groups, committed and pending offsets."""
    offsets = shard._offsets
    return deepcopy((dict(shard._logged), offsets._committed, offsets._pending))


def producers_with_pending_offsets(shard: GroupShard) -> list[int]:
    return list(shard._offsets._pending)


def expire_offsets(shard: GroupShard, now_ms: int) -> Outcome:
    """Looks for expired offsets now, and not when the timer is due."""
    out = Outcome()
    shard._clean_up(now_ms, now_ms, out)
    return out
