"""Where a group would stand after a reset of its offsets. Nothing is changed here: show the plan, then apply it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from oncelog.client.admin import Admin
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offsets import PartitionOffsets, partition_offsets
from oncelog.monitoring.positions import Position, PositionKind, find_offsets


@dataclass(frozen=True, slots=True)
class PartitionReset:
    partition: TopicPartition
    offsets: PartitionOffsets
    before: int | None
    wanted: int

    @property
    def after(self) -> int:
        return self.offsets.nearest(self.wanted)

    def as_row(self) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "before": self.before,
            "after": self.after,
        }


def plan_reset(
    admin: Admin, group_id: str, partitions: Collection[TopicPartition], target: Position
) -> list[PartitionReset]:
    """A relative target is one from the committed offset. Raises ValueError if there is none."""
    before = {partition: found.offset for partition, found in admin.group_offsets(group_id).items()}
    offsets = partition_offsets(admin, partitions)
    if target.kind is PositionKind.RELATIVE:
        missing = [str(partition) for partition in partitions if partition not in before]
        if missing:
            raise ValueError(f"{', '.join(missing)} has no committed offset to start from")
        wanted = {partition: before[partition] + target.number for partition in partitions}
    else:
        wanted = find_offsets(admin, target, offsets, {partition: found.end for partition, found in offsets.items()})
    return [PartitionReset(p, offsets[p], before.get(p), wanted[p]) for p in partitions]
