"""How many producers the partitions of this broker remember, over all of them.

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
        self._count_at_most = 0
        self._count_again_ms = 0

    def admit(self) -> None:
        """One more, on some partition. Raises POLICY_VIOLATION."""
        now_ms = self._broker.steady_ms()
        if now_ms >= self._count_again_ms:
            self._count_again_ms = now_ms + COUNT_INTERVAL_MS
            self._count_at_most = self._count()
        if self._count_at_most >= self._max:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"the partitions of this broker remember {self._max} producers, as many as oncelog.producer.ids.max "
                f"allows; those without a record for {IDLE_MS // 60_000} minutes are forgotten before long",
            )
        self._count_at_most += 1

    def idle_ms(self) -> int | None:
        """After which time producers without an open transaction are to be forgotten, if there is little room left."""
        return IDLE_MS if self._count() > self._max - self._max // 10 else None

    def _count(self) -> int:
        return sum([len(partition.log.producer_state) for partition in self._broker.partitions])
