"""What the shell must carry out after a record was applied."""

from __future__ import annotations

from oncelog.core.dataclass import dataclass
from oncelog.core.ids import CoordinatorEpoch, ProducerEpoch, ProducerId, TopicPartition


@dataclass(frozen=True, slots=True, eq=False)
class SendMarkers:
    """Write the marker to every partition, retrying for as long as the coordinator epoch lasts.

    The object itself stands for this one completion: results are reported with it, so that a late one of an earlier
    transaction of the same id is recognised. An empty set needs no marker: report it acknowledged at once.
    """

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    coordinator_epoch: CoordinatorEpoch
    commit: bool
    partitions: frozenset[TopicPartition]
    transaction_version: int
