"""WriteTxnMarkers (27): the coordinator, or an admin, ends transactions on the partitions of a broker.

v2 carries the transaction version, by which the broker knows which epochs a marker may have.
"""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, int64, string


class WritableTxnMarkerTopic(Message):
    name: str = string()
    partition_indexes: list[int] = array(int32)


class WritableTxnMarker(Message):
    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()
    transaction_version: int = int8(since=2)


class WriteTxnMarkersRequest(Message, api=ApiKey.WRITE_TXN_MARKERS):
    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


class WritableTxnMarkerPartitionResult(Message):
    partition_index: int = int32()
    error_code: int = int16()


class WritableTxnMarkerTopicResult(Message):
    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


class WritableTxnMarkerResult(Message):
    producer_id: int = int64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


class WriteTxnMarkersResponse(Message, api=ApiKey.WRITE_TXN_MARKERS):
    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)
