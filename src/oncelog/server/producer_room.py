"""How many producers the partitions of this broker remember, each and over all of them.

A partition writes all of its producers into a snapshot whenever it begins a segment, which must not take long.

A producer that a partition has forgotten may start with any sequence number, so a batch that comes again would be
appended again. Therefore none is forgotten to make room for another, unless it was idle for longer than clients send a
batch again. If that is not enough, producers that are new to a partition are refused there; the others go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oncelog.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

COUNT_INTERVAL_MS: Final = 10_000
IDLE_MS: Final = 600_000
"""Five times the default of delivery.timeout.ms."""


class ProducerRoom:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._max = broker.settings.integer("oncelog.producer.ids.max")
        self._partition_max = broker.settings.integer("oncelog.partition.producer.ids.max")
        self._count_at_most = 0
        self._count_again_ms = 0

    def admit(self, known: int) -> None:
        """Admit one more producer on a partition that knows `known` of them. Raises POLICY_VIOLATION."""
        if known >= self._partition_max:
            raise self._refusal("this partition remembers", self._partition_max, "oncelog.partition.producer.ids.max")
        now_ms = self._broker.steady_ms()
        if now_ms >= self._count_again_ms:
            self._count_again_ms = now_ms + COUNT_INTERVAL_MS
            self._count_at_most = self._count()
        if self._count_at_most >= self._max:
            raise self._refusal("the partitions of this broker remember", self._max, "oncelog.producer.ids.max")
        self._count_at_most += 1

    def _refusal(self, who: str, limit: int, setting: str) -> KafkaError:
        return KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{who} {limit} producers, as many as {setting} allows; those without a record for "
            f"{IDLE_MS // 60_000} minutes are forgotten before long",
        )

    def is_short(self) -> bool:
        """Whether there is little room left over all partitions."""
        return self._count() > _most_of(self._max)

    def idle_ms(self, known: int, *, is_short: bool) -> int | None:
        """After which time producers without an open transaction are to be forgotten by a partition that has so many,
        if there is little room left."""
        return IDLE_MS if is_short or known > _most_of(self._partition_max) else None

    def _count(self) -> int:
        return sum([len(partition.log.producer_state) for partition in self._broker.partitions])


def _most_of(limit: int) -> int:
    return limit - limit // 10
