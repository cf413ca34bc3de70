"""Producer ids, handed out from blocks that the controller gives to this broker, and never an id twice.

The controller has noted a block before the first of its ids is handed out, so that a crash can waste some.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import ProducerId
from oncelog.core.promise import Promise

if TYPE_CHECKING:
    from oncelog.protocol.messages.allocate_producer_ids import AllocateProducerIdsResponse
    from oncelog.server.broker import Broker
    from oncelog.storage.log import Log

_TIMEOUT_MS: Final = 5_000
_RETRY_MS: Final = 1_000
FORGOTTEN_MAX: Final = 1_000_000
"""How many ids are skipped if controllers have forgotten that they gave them out. A thousand blocks are asked for, and
ids that are higher are taken for made up by clients."""

logger = logging.getLogger("oncelog.server")


class ProducerIds:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._block = range(0)
        self._skipped_up_to = -1
        self._are_forgotten = False
        """Whether controllers of a cluster did not know that these are in use."""
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
            reservation: Promise[KafkaError | None] = Promise()
            self._reserve_for(reservation)
            self._reservation = None if reservation.done else reservation
            return reservation
        return self._reservation

    def _reserve_for(self, reservation: Promise[KafkaError | None]) -> None:
        self._reserve().then(lambda block: self._reserved(block, reservation))

    def _reserve(self) -> Promise[range | KafkaError]:
        membership = self._broker.membership
        if membership is None:
            return Promise.resolved(_refusal("the broker has not joined its cluster yet"))
        self._skip()
        from oncelog.protocol.messages.allocate_producer_ids import (
            AllocateProducerIdsRequest,
            AllocateProducerIdsResponse,
        )

        request = AllocateProducerIdsRequest(broker_id=self._broker.node_id, broker_epoch=membership.lifecycle.epoch)
        answer = membership.ask_controller("producer ids", request, AllocateProducerIdsResponse, _TIMEOUT_MS)
        return answer.map(_block)

    def _reserved(self, block: range | KafkaError, reservation: Promise[KafkaError | None]) -> None:
        if not isinstance(block, KafkaError) and block.start <= self._skipped_up_to:
            self._reserve_for(reservation)
            return
        self._reservation = None
        self._refusal = block if isinstance(block, KafkaError) else None
        if not isinstance(block, KafkaError):
            self._block = block
        elif self._are_forgotten:
            self._broker.later(_RETRY_MS, self._try_again)
        reservation.resolve(self._refusal)

    def _try_again(self) -> None:
        self.available()

    def skip_above(self, highest: int) -> None:
        """Give out no id up to `highest`, which is in use. Nothing changes if that is the case anyway.

        Controllers have forgotten it if their log has lost its end, or is an older copy. One in this process is told.
        Those of a cluster are asked for blocks until they are above it, at once, as others ask them too.
        """
        if self._broker.own_controller is None and not self._has_forgotten(highest):
            return
        self._skipped_up_to = max(self._skipped_up_to, highest)
        self._skip()
        if self._block and self._block.start <= self._skipped_up_to:
            self._block = range(0)
        if self._are_forgotten:
            self.available()

    def skip_those_of(self, logs: Iterable[Log]) -> None:
        """`skip_above`, for a broker of a cluster that has opened its logs and serves nobody yet."""
        limit = self._following + FORGOTTEN_MAX
        self.skip_above(max((each.producer_state.highest_producer_id(limit) for each in logs), default=-1))

    @property
    def _following(self) -> int:
        """The first id that nobody has yet, as far as the metadata knows. A block is in it before its ids are used."""
        return max(0, self._broker.metadata.image.next_producer_id)

    def _has_forgotten(self, highest: int) -> bool:
        following = self._following
        if not max(following, self._skipped_up_to + 1) <= highest < following + FORGOTTEN_MAX:
            return False
        logger.error(
            "producer ids up to %d are in use, and the metadata has given out none from %d on: it is an older copy, or "
            "a client has made ids up. They are skipped; see docs/cluster.md",
            highest,
            following,
        )
        self._are_forgotten = True
        return True

    def _skip(self) -> None:
        """Called again before each reservation, because the controller may have failed to note it."""
        if self._broker.own_controller is not None:
            self._broker.own_controller.skip_producer_ids_above(self._skipped_up_to)


def _block(answer: AllocateProducerIdsResponse | KafkaError) -> range | KafkaError:
    if isinstance(answer, KafkaError):
        return _refusal(answer.message)
    if answer.error_code != ErrorCode.NONE:
        return _refusal(f"the controller answered with error {answer.error_code}")
    return range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)


def _refusal(reason: str) -> KafkaError:
    """Retriable for every client."""
    return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"there is no block of producer ids: {reason}")
