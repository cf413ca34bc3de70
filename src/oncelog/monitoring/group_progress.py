"""Consumer groups: who reads which partition, how far the group is, and how far behind."""

from __future__ import annotations

from dataclasses import dataclass

from oncelog.client.admin import Admin, GroupDescription
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offsets import Lag, PartitionOffsets, lag_of, partition_offsets


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    partition: TopicPartition
    committed: int | None
    offsets: PartitionOffsets | None
    """None if the partition is not there any more."""
    member: str | None

    @property
    def lag(self) -> Lag | None:
        if self.committed is None or self.offsets is None:
            return None
        return lag_of(self.committed, self.offsets)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    group: str
    description: GroupDescription
    partitions: list[PartitionProgress]


def group_progress(admin: Admin, group: str) -> GroupProgress:
    """Every partition that the group has committed or that a member reads."""
    description: GroupDescription = admin.describe_groups([group])[group]
    committed = admin.group_offsets(group)
    members = {
        partition: f"{member.client_id or member.member_id}@{member.host}"
        for member in description.members
        for partition in member.partitions
    }
    partitions = sorted(committed.keys() | members.keys())
    offsets = partition_offsets(admin, _existing(admin, partitions))
    return GroupProgress(
        group,
        description,
        [
            PartitionProgress(
                partition,
                committed[partition].offset if partition in committed else None,
                offsets.get(partition),
                members.get(partition),
            )
            for partition in partitions
        ],
    )


def _existing(admin: Admin, partitions: list[TopicPartition]) -> list[TopicPartition]:
    topics = admin.list_topics(internal=True)
    return [p for p in partitions if p.topic in topics and p.partition < len(topics[p.topic].partitions)]
