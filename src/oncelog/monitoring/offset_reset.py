"""Where a group would stand after a reset of its offsets. Nothing is changed here: show the plan, then apply it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from oncelog.client.admin import Admin
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offsets import PartitionOffsets, partition_offsets


class ResetKind(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    SHIFT = "shift"
    """By a number of offsets, forward or back."""
    TIME_MS = "time"


@dataclass(frozen=True, slots=True)
class ResetTarget:
    kind: ResetKind
    number: int = 0
    """The offset, the shift or the time."""


@dataclass(frozen=True, slots=True)
class PartitionReset:
    partition: TopicPartition
    offsets: PartitionOffsets
    before: int | None
    wanted: int

    @property
    def after(self) -> int:
        """The nearest offset that the log has."""
        return min(max(self.wanted, self.offsets.start), self.offsets.end)

    def as_row(self) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "before": self.before,
            "after": self.after,
        }


def plan_reset(
    admin: Admin, group_id: str, partitions: Collection[TopicPartition], target: ResetTarget
) -> list[PartitionReset]:
    """Raises ValueError if offsets shall be shifted that were never committed."""
    before = {partition: found.offset for partition, found in admin.group_offsets(group_id).items()}
    offsets = partition_offsets(admin, partitions)
    wanted = _wanted(admin, offsets, before, target)
    return [PartitionReset(p, offsets[p], before.get(p), wanted[p]) for p in partitions]


def _wanted(
    admin: Admin,
    offsets: Mapping[TopicPartition, PartitionOffsets],
    before: Mapping[TopicPartition, int],
    target: ResetTarget,
) -> dict[TopicPartition, int]:
    match target.kind:
        case ResetKind.EARLIEST:
            return {partition: found.start for partition, found in offsets.items()}
        case ResetKind.LATEST:
            return {partition: found.end for partition, found in offsets.items()}
        case ResetKind.OFFSET:
            return dict.fromkeys(offsets, target.number)
        case ResetKind.SHIFT:
            missing = [str(partition) for partition in offsets if partition not in before]
            if missing:
                raise ValueError(f"{', '.join(missing)} has no committed offset to start from")
            return {partition: before[partition] + target.number for partition in offsets}
        case ResetKind.TIME_MS:
            found = admin.list_offsets(dict.fromkeys(offsets, target.number))
            # Without a record that is not older, the group reads what comes next.
            return {p: found[p].offset if found[p].offset >= 0 else offsets[p].end for p in offsets}
