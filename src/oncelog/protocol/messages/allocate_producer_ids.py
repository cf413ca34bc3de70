"""AllocateProducerIds (67): a block of producer ids for a broker, from the controller."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, int16, int32, int64


class AllocateProducerIdsRequest(Message, api=ApiKey.ALLOCATE_PRODUCER_IDS):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)


class AllocateProducerIdsResponse(Message, api=ApiKey.ALLOCATE_PRODUCER_IDS):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id_start: int = int64()
    producer_id_len: int = int32()
