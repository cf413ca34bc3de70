"""Producer ids, handed out from blocks that the metadata has reserved.

A block is reserved before the first of its ids is handed out, so that a crash can waste some and never hand one out
twice.
"""

from __future__ import annotations

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import ProducerId
from oncelog.core.promise import Promise


class ProducerIds:
    """Where blocks come from is up to `_reserve`."""

    def __init__(self) -> None:
        self._block = range(0)
        self._reservation: Promise[KafkaError | None] | None = None
        self._refusal: KafkaError | None = None

    def take(self) -> ProducerId:
        """Raises KafkaError if there is none: then the next block is on its way, or could not be reserved."""
        if not self._block:
            refusal = self._refusal
            self.available()
        if not self._block:
            waiting = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a block of producer ids is being reserved")
            raise refusal or waiting
        producer_id, self._block = self._block[0], self._block[1:]
        return ProducerId(producer_id)

    def available(self) -> Promise[KafkaError | None]:
        """Promises that `take` has an id to give, or the reason why it has not."""
        if self._block:
            return Promise.resolved(None)
        if self._reservation is None:
            self._refusal = None
            reservation = self._reserve().map(self._reserved)
            self._reservation = None if reservation.done else reservation
            return reservation
        return self._reservation

    def _reserve(self) -> Promise[range | KafkaError]:
        raise NotImplementedError

    def _reserved(self, block: range | KafkaError) -> KafkaError | None:
        self._reservation = None
        self._refusal = block if isinstance(block, KafkaError) else None
        if not isinstance(block, KafkaError):
            self._block = block
        return self._refusal

    def skip_above(self, highest: int) -> None:
        """Give out no id up to `highest`, which is in use. Nothing changes if that is the case anyway."""
