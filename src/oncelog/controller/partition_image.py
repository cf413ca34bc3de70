"""One partition as the metadata has it, and how a change is merged into it.

Fields that a change gives replace the old ones. The leader epoch grows by one whenever a change names a leader, even
the same one; the partition epoch grows with every change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Self
from uuid import UUID

from oncelog.controller.errors import InvalidMetadata
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import NULL_UUID, LeaderEpoch, NodeId
from oncelog.protocol.messages.cluster_metadata import PartitionChangeRecord, PartitionRecord

MIGRATING_DIRECTORY: Final = NULL_UUID
"""The directory of a replica while it is unknown: records before metadata.version 17 have none."""
NO_LEADER_CHANGE: Final = -2
"""What the leader of a change is if it names none."""
_NO_RECOVERY_CHANGE: Final = -1


@dataclass(frozen=True, slots=True)
class PartitionImage:
    replicas: tuple[NodeId, ...]
    directories: tuple[UUID, ...]
    """One for each replica, in their order."""
    isr: tuple[NodeId, ...]
    removing_replicas: tuple[NodeId, ...]
    adding_replicas: tuple[NodeId, ...]
    elr: tuple[NodeId, ...]
    """Eligible leader replicas: not in sync, but they have all that is committed (KIP-966)."""
    last_known_elr: tuple[NodeId, ...]
    leader: NodeId
    """-1: none."""
    is_recovering: bool
    """Whether it recovers from an unclean election."""
    leader_epoch: LeaderEpoch
    partition_epoch: int

    def __post_init__(self) -> None:
        if len(self.directories) != len(self.replicas):
            raise InvalidMetadata(f"{len(self.replicas)} replicas have {len(self.directories)} directories")

    @classmethod
    def from_record(cls, record: PartitionRecord) -> Self:
        return cls(
            replicas=_ids(record.replicas),
            directories=_directories(record.directories, len(record.replicas)),
            isr=_ids(record.isr),
            removing_replicas=_ids(record.removing_replicas),
            adding_replicas=_ids(record.adding_replicas),
            elr=_ids(record.eligible_leader_replicas or ()),
            last_known_elr=_ids(record.last_known_elr or ()),
            leader=NodeId(record.leader),
            is_recovering=_is_recovering(record.leader_recovery_state),
            leader_epoch=LeaderEpoch(record.leader_epoch),
            partition_epoch=record.partition_epoch,
        )

    def merged(self, change: PartitionChangeRecord) -> Self:
        replicas = self.replicas if change.replicas is None else _ids(change.replicas)
        directories = self.directories
        if change.directories is not None or change.replicas is not None:
            directories = _directories(directories if change.directories is None else change.directories, len(replicas))
        has_leader = change.leader != NO_LEADER_CHANGE
        recovery = change.leader_recovery_state
        isr, elr, last_known_elr = change.isr, change.eligible_leader_replicas, change.last_known_elr
        removing, adding = change.removing_replicas, change.adding_replicas
        # Without a call for each: most changes name a leader and nothing else, and come for all partitions at once.
        return type(self)(
            replicas=replicas,
            directories=directories,
            isr=self.isr if isr is None else _ids(isr),
            removing_replicas=self.removing_replicas if removing is None else _ids(removing),
            adding_replicas=self.adding_replicas if adding is None else _ids(adding),
            elr=self.elr if elr is None else _ids(elr),
            last_known_elr=self.last_known_elr if last_known_elr is None else _ids(last_known_elr),
            leader=NodeId(change.leader) if has_leader else self.leader,
            is_recovering=self.is_recovering if recovery == _NO_RECOVERY_CHANGE else _is_recovering(recovery),
            leader_epoch=LeaderEpoch(self.leader_epoch + has_leader),
            partition_epoch=self.partition_epoch + 1,
        )

    def to_record(self, topic_id: UUID, partition: int) -> PartitionRecord:
        return PartitionRecord(
            partition_id=partition,
            topic_id=topic_id,
            replicas=list(self.replicas),
            isr=list(self.isr),
            removing_replicas=list(self.removing_replicas),
            adding_replicas=list(self.adding_replicas),
            leader=self.leader,
            leader_recovery_state=int(self.is_recovering),
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=list(self.directories),
            eligible_leader_replicas=list(self.elr) or None,
            last_known_elr=list(self.last_known_elr) or None,
        )


def _ids(numbers: Iterable[int]) -> tuple[NodeId, ...]:
    return tuple(numbers)  # type: ignore[arg-type]  # NodeId is an int, and a call for each would take longer than all else


def _directories(given: Iterable[UUID], count: int) -> tuple[UUID, ...]:
    """Replicas without any known directory may change in number without a word about directories."""
    directories = tuple(given)
    if directories == (MIGRATING_DIRECTORY,) * len(directories):
        return (MIGRATING_DIRECTORY,) * count
    return directories


def _is_recovering(state: int) -> bool:
    if state not in (0, 1):
        raise InvalidMetadata(f"leader recovery state {state} is unknown: 0 is recovered, 1 is recovering")
    return bool(state)
