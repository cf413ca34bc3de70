"""What the metadata says of a partition: who leads it under which epoch, who keeps a copy, and who is up to date."""

from __future__ import annotations

from dataclasses import dataclass

from oncelog.core.ids import LeaderEpoch, NodeId


@dataclass(frozen=True, slots=True)
class PartitionState:
    leader: NodeId
    """-1: none."""
    leader_epoch: LeaderEpoch
    replicas: tuple[NodeId, ...]
    in_sync: tuple[NodeId, ...]
    partition_epoch: int = 0
    """Grows with every change, also with those that leave the leader as it is."""
