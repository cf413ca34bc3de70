"""What the logs of a folder have seen of the numbers that must never be given out twice.

These are the epochs of leaders and of coordinators, and producer ids with their epochs. The journal, and the log of the
transaction coordinator, normally know more than the logs. After damage or a power cut they may know less: whoever goes
by them must not begin below what is found here.

All logs are opened for it. After a crash they are open anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Final

from oncelog.core.dataclass import dataclass
from oncelog.storage.log import Log

if TYPE_CHECKING:
    from oncelog.coordinator.txn.recovery import OpenTransaction
    from oncelog.core.ids import TopicPartition
    from oncelog.storage.producer_entry import ProducerEntry

PRODUCER_IDS_END: Final = 1 << 62
COORDINATOR_EPOCHS_END: Final = 1 << 30
"""Nobody gets as far as these. A larger number was made up by a client, and there must be room to go on above it."""


@dataclass(slots=True)
class LogSurvey:
    leader_epochs: dict[str, int] = field(default_factory=lambda: defaultdict(lambda: -1))
    """The highest of each topic."""
    coordinator_epoch: int = -1
    producer_epochs: dict[int, int] = field(default_factory=dict)
    """The highest of each producer id."""
    open_transactions: list[OpenTransaction] = field(default_factory=list)

    @property
    def producer_id(self) -> int:
        """The highest, -1 if there is none."""
        return max(self.producer_epochs, default=-1)


def survey_logs(logs: Iterable[Log]) -> LogSurvey:
    survey = LogSurvey()
    for log in logs:
        partition = log.topic_partition
        seen = survey.leader_epochs
        seen[partition.topic] = max(seen[partition.topic], log.leader_epochs.latest_epoch)
        for producer in log.producer_state.active_producers():
            if producer.producer_id >= PRODUCER_IDS_END:
                continue
            epoch = survey.producer_epochs.get(producer.producer_id, -1)
            survey.producer_epochs[producer.producer_id] = max(epoch, producer.epoch)
            if survey.coordinator_epoch < producer.coordinator_epoch < COORDINATOR_EPOCHS_END:
                survey.coordinator_epoch = producer.coordinator_epoch
        for entry in log.producer_state.in_transaction():
            survey.open_transactions.append(_open_transaction(partition, entry))
    return survey


def _open_transaction(partition: TopicPartition, entry: ProducerEntry) -> OpenTransaction:
    from oncelog.coordinator.txn.recovery import OpenTransaction  # few starts find any

    return OpenTransaction(partition, entry.producer_id, entry.epoch, entry.coordinator_epoch, entry.last_marker_ms)
