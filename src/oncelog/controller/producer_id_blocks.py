"""AllocateProducerIds (67): every block is given out once."""

from __future__ import annotations

from typing import Final

from oncelog.controller.decision import Decision
from oncelog.controller.view import View
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from oncelog.protocol.messages.cluster_metadata import ProducerIdsRecord

BLOCK_SIZE: Final = 1000
_PRODUCER_ID_MAX: Final = 2**63 - 1


def allocate_producer_ids(view: View, request: AllocateProducerIdsRequest) -> Decision:
    view.check_epoch(request.broker_id, request.broker_epoch)
    first = max(0, view.image.next_producer_id)
    if first > _PRODUCER_ID_MAX - BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids are given out.")
    record = ProducerIdsRecord(
        broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=first + BLOCK_SIZE
    )
    return Decision([record], AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK_SIZE))
