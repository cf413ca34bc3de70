"""Hints that commands print to the standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.cli.cluster_access import ClusterAccess
from oncelog.cli.output import count_of
from oncelog.core.ids import TopicPartition

if TYPE_CHECKING:
    from oncelog.monitoring.offsets import PartitionOffsets


def held_back_hint(access: ClusterAccess, partition: TopicPartition, offsets: PartitionOffsets) -> str:
    blocking = access.command("txn", "blocking", f"{partition.topic}:{partition.partition}")
    return (
        f"{partition}: an open transaction holds back {count_of(offsets.held_back, 'offset')} from "
        f"{offsets.last_stable} on; '{blocking}' says whose it is"
    )


def too_late_hint(partition: TopicPartition, text: str, used: int) -> str:
    return f"{partition} has no record of {text} or later: its end, offset {used}"


def outside_hint(partition: TopicPartition, offsets: PartitionOffsets, wanted: int, used: int) -> str:
    return f"{partition} has offsets {offsets.start} to {offsets.end}: {used} instead of {wanted}"
