"""Producer ids in a cluster: the controller gives out blocks of them, and never an id twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oncelog.cluster.producer_ids import ProducerIds
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

_TIMEOUT_MS: Final = 5_000


class ControllerProducerIds(ProducerIds):
    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker

    def _reserve(self) -> Promise[range | KafkaError]:
        membership = self._broker.membership
        if membership is None:
            return Promise.resolved(_refusal("the broker has not joined its cluster yet"))
        request = AllocateProducerIdsRequest(broker_id=self._broker.node_id, broker_epoch=membership.lifecycle.epoch)
        answer = membership.ask_controller("producer ids", request, AllocateProducerIdsResponse, _TIMEOUT_MS)
        return answer.map(_block)

    def skip_above(self, highest: int) -> None:
        """Controllers of a cluster know what they have given out; one in this process may have lost it with the end of
        its log."""
        controller = self._broker.own_controller
        if controller is not None and controller.skip_producer_ids_above(highest):
            self._block = range(0)


def _block(answer: AllocateProducerIdsResponse | KafkaError) -> range | KafkaError:
    if isinstance(answer, KafkaError):
        return _refusal(answer.message)
    if answer.error_code != ErrorCode.NONE:
        return _refusal(f"the controller answered with error {answer.error_code}")
    return range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)


def _refusal(reason: str) -> KafkaError:
    """Retriable for every client."""
    return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"there is no block of producer ids: {reason}")
