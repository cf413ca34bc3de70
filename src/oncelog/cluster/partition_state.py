"""What the metadata says of a partition: who leads it under which epoch, who keeps a copy, and who is up to date."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Self

from oncelog.core.dataclass import dataclass
from oncelog.core.ids import LeaderEpoch, NodeId

if TYPE_CHECKING:
    from oncelog.controller.partition_image import PartitionImage


class Role(Enum):
    """What a broker does with a partition."""

    LEADER = auto()
    FOLLOWER = auto()
    NONE = auto()
    """It keeps no copy, or is not to keep one any more."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    leader: NodeId
    """-1: none."""
    leader_epoch: LeaderEpoch
    replicas: tuple[NodeId, ...]
    in_sync: tuple[NodeId, ...]
    partition_epoch: int = 0
    """Grows with every change, also with those that leave the leader as it is."""
    eligible: tuple[NodeId, ...] = ()
    """Eligible leader replicas: not in sync, but they have all that is committed."""
    last_known_eligible: tuple[NodeId, ...] = ()

    @classmethod
    def from_image(cls, image: PartitionImage) -> Self:
        return cls(
            image.leader,
            image.leader_epoch,
            image.replicas,
            image.isr,
            image.partition_epoch,
            image.elr,
            image.last_known_elr,
        )

    def role_of(self, broker: NodeId) -> Role:
        if broker == self.leader:
            return Role.LEADER
        return Role.FOLLOWER if broker in self.replicas else Role.NONE
