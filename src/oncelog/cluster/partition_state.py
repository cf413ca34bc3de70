"""What the metadata says of a partition: who leads it under which epoch, who keeps a copy, and who is up to date."""

from __future__ import annotations

from dataclasses import dataclass

from oncelog.core.ids import LeaderEpoch, NodeId


@dataclass(frozen=True, slots=True)
class PartitionState:
    leader: NodeId
    leader_epoch: LeaderEpoch
    replicas: tuple[NodeId, ...]
    in_sync: tuple[NodeId, ...]
