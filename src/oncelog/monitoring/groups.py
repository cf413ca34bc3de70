"""Consumer groups: who reads which partition, how far the group is, and how far behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncelog.client.admin import Admin, GroupDescription
from oncelog.client.offsets import OffsetAndMetadata
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offsets import Lag, PartitionOffsets, lag_of, partition_offsets

Committed = Mapping[TopicPartition, OffsetAndMetadata]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    partition: TopicPartition
    committed: int | None
    note: str
    """What the group stored with its offset."""
    offsets: PartitionOffsets | None
    """None if the partition does not exist any more or has no leader."""
    member: str | None

    @property
    def lag(self) -> Lag | None:
        if self.committed is None or self.offsets is None:
            return None
        return lag_of(self.committed, self.offsets)

    def as_row(self) -> dict[str, Any]:
        offsets, lag = self.offsets, self.lag
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "committed": self.committed,
            "last_stable": offsets.last_stable if offsets is not None else None,
            "end": offsets.end if offsets is not None else None,
            "lag": lag.total if lag is not None else None,
            "visible_lag": lag.visible if lag is not None else None,
            "held_back": lag.held_back if lag is not None else None,
            "member": self.member,
        }


@dataclass(frozen=True, slots=True)
class Group:
    description: GroupDescription
    partitions: tuple[GroupPartition, ...]
    """Every partition that the group has committed or that a member reads."""

    @property
    def lag(self) -> int:
        """The lag of all partitions together, as far as it is known."""
        return sum(max(one.lag.total, 0) for one in self.partitions if one.lag is not None)

    def as_row(self) -> dict[str, Any]:
        description = self.description
        return {
            "group": description.group_id,
            "state": description.state,
            "coordinator": description.coordinator,
            "assignor": description.protocol,
            "members": [
                {
                    "member": member.member_id,
                    "instance": member.group_instance_id,
                    "client": member.client_id,
                    "host": member.host,
                    "partitions": [str(partition) for partition in sorted(member.partitions)],
                }
                for member in description.members
            ],
            "offsets": [one.as_row() for one in self.partitions],
        }


def describe_group(admin: Admin, group_id: str) -> Group:
    description: GroupDescription = admin.describe_groups([group_id])[group_id]
    committed = admin.group_offsets(group_id)
    wanted = committed.keys() | members_of(description).keys()
    topics = admin.list_topics(internal=True)
    existing = [p for p in wanted if p.topic in topics and p.partition < len(topics[p.topic].partitions)]
    return join_group(description, committed, partition_offsets(admin, existing))


def join_group(
    description: GroupDescription, committed: Committed, offsets: Mapping[TopicPartition, PartitionOffsets]
) -> Group:
    """What coordinator and partitions say, side by side.

    The committed offsets must be older than those of the partitions: otherwise a group can seem to be beyond the end.
    """
    members = members_of(description)
    return Group(
        description,
        tuple(
            GroupPartition(
                partition,
                committed[partition].offset if partition in committed else None,
                committed[partition].metadata if partition in committed else "",
                offsets.get(partition),
                members.get(partition),
            )
            for partition in sorted(committed.keys() | members.keys())
        ),
    )


def members_of(description: GroupDescription) -> dict[TopicPartition, str]:
    """Who reads each partition."""
    return {
        partition: f"{member.client_id or member.member_id}@{member.host}"
        for member in description.members
        for partition in member.partitions
    }
