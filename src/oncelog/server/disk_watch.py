"""A broker of a cluster whose disk fails gives its leaderships up: others have the records and can take new ones.

While it answered heartbeats the controller would leave it the leader, and every write would be refused for ever. So it
asks for a controlled shutdown and ends, as a broker of Apache Kafka does whose only log directory fails. It has reason
to if a partition that it leads, and that another broker could lead,

- has a log that only a start can recover,
- has a log that has been waiting for `PATIENCE_MS` to be repaired, as on a full disk,
- has refused all appends for so long because of the disk,
- could not take its role for so long.

One that no other broker could lead is better served by reads than by nobody.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from oncelog.cluster.partition import Partition
from oncelog.core.ids import TopicPartition
from oncelog.core.named_tuple import NamedTuple

if TYPE_CHECKING:
    from oncelog.server.broker import Broker
    from oncelog.server.membership import Membership
    from oncelog.server.replication import Replication

log = logging.getLogger("oncelog.server")

LOOK_INTERVAL_MS: Final = 1_000
PATIENCE_MS: Final = 10_000
LEAVING_MS: Final = 60_000
"""After this time the broker ends without the controller's permission."""


class _Trouble(NamedTuple):
    since_ms: int
    refusals: int
    """How many appends in a row had been refused when it was first seen."""


class DiskWatch:
    def __init__(self, broker: Broker, membership: Membership, replication: Replication) -> None:
        self._broker = broker
        self._membership = membership
        self._replication = replication
        self._troubles: dict[TopicPartition, _Trouble] = {}

    def look(self) -> None:
        if self._membership.is_leaving:
            return
        now_ms = self._broker.steady_ms()
        reasons: dict[TopicPartition, str] = {}
        before, self._troubles = self._troubles, {}
        for partition in self._broker.partitions:
            if not partition.could_be_led_by_others:
                continue
            key = partition.topic_partition
            if partition.is_broken:
                reasons[key] = partition.log.failure
            elif partition.log.has_failed or partition.disk_refusals:
                trouble = self._troubles[key] = before.get(key, _Trouble(now_ms, partition.disk_refusals))
                if now_ms - trouble.since_ms >= PATIENCE_MS and _goes_on(partition, trouble):
                    reasons[key] = partition.log.failure or "appends are refused by the disk"
        for key in self._replication.roles_not_taken:
            trouble = self._troubles[key] = before.get(key, _Trouble(now_ms, 0))
            if now_ms - trouble.since_ms >= PATIENCE_MS:
                reasons[key] = "it cannot be led here, see above"
        if reasons:
            self._give_up(*next(iter(reasons.items())))

    def _give_up(self, partition: TopicPartition, reason: str) -> None:
        sentence = (
            f"the disk of {self._broker.log_dir.path} has failed for {partition} ({reason}): the broker has given its "
            "leaderships up. Look after the disk, then start the broker again"
        )
        log.error("%s", sentence)
        self._membership.give_up(sentence)
        self._broker.later(LEAVING_MS, lambda: self._membership.end(sentence))


def _goes_on(partition: Partition, trouble: _Trouble) -> bool:
    """Whether the disk still fails. Without new refusals nobody has tried to write, and it is not known."""
    return partition.log.has_failed or partition.disk_refusals > trouble.refusals
