"""One change of a partition: from what is wanted to the record, with the election of a leader. The rules are Kafka's.

A change goes through these steps:

1. A reassignment ends when all replicas that it adds are in sync.
2. With eligible leader replicas (KIP-966): as long as the ISR is smaller than min.insync.replicas, members that leave
   it are kept in the ELR. They have all that is committed.
3. A leader is elected, see below. A leader from the ELR becomes the ISR. An unclean leader becomes the ISR too, and is
   marked as recovering.
4. The leader epoch grows also if a replica is removed: the record then names the old leader.
5. The record has what differs. If nothing does, there is none.

Election: the first that is acceptable, which means that it is alive and its log directory is online.

| candidates in their order                  | PREFERRED | ONLINE | UNCLEAN | the election is |
| first replica, if in the ISR               | yes       |        |         | clean           |
| current leader, if in the ISR              | yes       | yes    | yes     | clean           |
| replicas in the ISR                        | yes       | yes    | yes     | clean           |
| replicas in the ELR, if the ISR is empty   | yes       | yes    | yes     | clean           |
| the last known leader, if both are empty   | yes       | yes    | yes     | unclean         |
| any replica                                |           |        | yes     | unclean         |
| nobody: the leader is -1                   | yes       | yes    | yes     |                 |

Without ELR the ISR is never empty: its last members stay in it, and only they can be elected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum, auto
from typing import Final
from uuid import UUID

from oncelog.controller.partition_image import NO_LEADER_CHANGE, PartitionImage
from oncelog.core.dataclass import dataclass
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.messages.cluster_metadata import PartitionChangeRecord

NO_LEADER: Final = -1
_RECOVERING: Final = 1


class Election(Enum):
    PREFERRED = auto()
    ONLINE = auto()
    UNCLEAN = auto()


class Elected(NamedTuple):
    leader: int
    is_unclean: bool = False


@dataclass(slots=True)
class PartitionChange:
    """What is wanted of a partition. Fields that are not set stay as they are."""

    partition: PartitionImage
    is_acceptable: Callable[[int], bool]
    """As a leader."""
    directory_of: Callable[[int], UUID]
    """Where a broker puts a new replica."""
    min_isr: int
    has_elr: bool
    election: Election = Election.ONLINE
    isr: Sequence[int] | None = None
    replicas: Sequence[int] | None = None
    removing: Sequence[int] | None = None
    adding: Sequence[int] | None = None
    is_recovering: bool | None = None
    unclean_shutdowns: Sequence[int] = ()
    """Replicas that may have lost what was acknowledged."""
    moved: Mapping[int, UUID] = field(default_factory=dict)
    """Replicas that lie in another directory now."""
    elr: list[int] = field(init=False)

    def record(self, topic_id: UUID, index: int) -> PartitionChangeRecord | None:
        old = self.partition
        isr, replicas = list(_or(self.isr, old.isr)), list(_or(self.replicas, old.replicas))
        removing, adding = list(_or(self.removing, old.removing_replicas)), list(_or(self.adding, old.adding_replicas))
        if _is_complete(isr, replicas, removing, adding):
            isr = [replica for replica in isr if replica not in removing]
            replicas = [replica for replica in replicas if replica not in removing]
            removing, adding = [], []
        self.elr = self._next_elr(isr, replicas)
        record = PartitionChangeRecord(topic_id=topic_id, partition_id=index)
        isr = self._elect(record, isr, replicas)
        if record.leader == NO_LEADER_CHANGE and not set(old.replicas) <= set(replicas):
            record.leader = old.leader
        self._note_in_sync(record, isr)
        self._note_replicas(record, replicas, removing, adding)
        if self.is_recovering is not None and self.is_recovering != old.is_recovering:
            record.leader_recovery_state = int(self.is_recovering)
        return None if record == PartitionChangeRecord(topic_id=topic_id, partition_id=index) else record

    def _next_elr(self, isr: list[int], replicas: list[int]) -> list[int]:
        if not self.has_elr or len(isr) >= self.min_isr:
            return [] if self.has_elr else list(self.partition.elr)
        candidates = {*self.partition.elr, *self.partition.isr}
        # A replica that is removed has deleted its records, also if it is added again later.
        return sorted((candidates & set(replicas)) - set(isr) - set(self.unclean_shutdowns))

    def _elect(self, record: PartitionChangeRecord, isr: list[int], replicas: list[int]) -> list[int]:
        """The ISR after the election."""
        old = self.partition
        elected = self._elected(isr, replicas)
        if elected.leader == old.leader:
            return isr
        record.leader = elected.leader
        if elected.leader in self.elr:
            self.elr = [replica for replica in self.elr if replica != elected.leader]
            isr = [elected.leader]
        if elected.is_unclean:
            record.isr = isr = [elected.leader]
            if not old.is_recovering:
                record.leader_recovery_state = _RECOVERING
        return isr

    def _elected(self, isr: list[int], replicas: list[int]) -> Elected:
        preferred = replicas[:1] if self.election is Election.PREFERRED else []
        eligible = isr or self.elr
        for candidate in [*preferred, self.partition.leader, *replicas]:
            if candidate in eligible and self.is_acceptable(candidate):
                return Elected(candidate)
        last_known = self.partition.last_known_elr
        if self.has_elr and not eligible and len(last_known) == 1 and self.is_acceptable(last_known[0]):
            return Elected(last_known[0], is_unclean=True)
        if self.election is Election.UNCLEAN:
            for candidate in replicas:
                if self.is_acceptable(candidate):
                    return Elected(candidate, is_unclean=True)
        return Elected(NO_LEADER)

    def _note_in_sync(self, record: PartitionChangeRecord, isr: list[int]) -> None:
        old = self.partition
        elr = self.elr if self.has_elr and record.isr is None else []
        if elr != list(old.elr):
            record.eligible_leader_replicas = elr
        if record.isr is None and (isr or self.has_elr) and isr != list(old.isr):
            record.isr = isr
        if not self.has_elr:
            return
        if record.leader == NO_LEADER and not old.last_known_elr and old.leader != NO_LEADER:
            record.last_known_elr = [old.leader]
        elif record.leader >= 0 and old.last_known_elr:
            record.last_known_elr = []

    def _note_replicas(
        self, record: PartitionChangeRecord, replicas: list[int], removing: list[int], adding: list[int]
    ) -> None:
        old = self.partition
        known: dict[int, UUID] = {**dict(zip(old.replicas, old.directories, strict=True)), **self.moved}
        directories = [known[replica] if replica in known else self.directory_of(replica) for replica in replicas]
        if directories != list(old.directories):
            record.directories = directories
        if replicas != list(old.replicas):
            record.replicas = replicas
        if removing != list(old.removing_replicas):
            record.removing_replicas = removing
        if adding != list(old.adding_replicas):
            record.adding_replicas = adding


def _or(wanted: Sequence[int] | None, present: Sequence[int]) -> Sequence[int]:
    return present if wanted is None else wanted


def _is_complete(isr: list[int], replicas: list[int], removing: list[int], adding: list[int]) -> bool:
    """Whether a reassignment can end."""
    if not removing and not adding:
        return False
    left_isr, left = set(isr) - set(removing), set(replicas) - set(removing)
    if (removing and (not left_isr or not left)) or not left_isr >= set(adding):
        return False
    # Fewer replicas than before: none of them may be missing, or the ISR would shrink without need.
    return len(adding) >= len(removing) or left_isr >= left
