"""ListOffsets (2), v1-11: offsets by time, and the special ones.

| timestamp | answer |
| --- | --- |
| -1 latest | last stable offset for read_committed, else high watermark |
| -2 earliest, -4 earliest local | log start offset |
| -3 max timestamp | offset of the record with the largest timestamp |
| -5 latest tiered, -6 earliest pending upload | -1: there is no tiered storage |
"""

from __future__ import annotations

from typing import NamedTuple

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetSpec,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext

# The version from which each special timestamp is understood; below it UNSUPPORTED_VERSION is the answer.
_SINCE_VERSION: dict[int, int] = {
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
    OffsetSpec.EARLIEST_PENDING_UPLOAD: 11,
}


class _Reader(NamedTuple):
    read_committed: bool
    is_replica: bool
    """A follower reads up to the end of the log."""


def handle(broker: Broker, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
    seen: dict[tuple[str, int], int] = {}
    for topic in request.topics:
        for wanted in topic.partitions:
            seen[topic.name, wanted.partition_index] = seen.get((topic.name, wanted.partition_index), 0) + 1
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _answer(
                        broker,
                        topic.name,
                        wanted,
                        _Reader(request.isolation_level == 1, broker.is_in_cluster and request.replica_id >= 0),
                        context,
                        seen[topic.name, wanted.partition_index] > 1,
                    )
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _answer(
    broker: Broker,
    topic: str,
    wanted: ListOffsetsPartition,
    reader: _Reader,
    context: RequestContext,
    duplicate: bool,
) -> ListOffsetsPartitionResponse:
    index = wanted.partition_index
    try:
        if reader.is_replica:
            context.require(Operation.CLUSTER_ACTION, Resource.CLUSTER)
        else:
            context.require(Operation.DESCRIBE, Resource.TOPIC, topic)
        if duplicate:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a partition is asked about twice")
        if wanted.timestamp < 0 and context.api_version < _SINCE_VERSION.get(wanted.timestamp, 0):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        timestamp, offset, epoch = _look_up(broker, topic, wanted, reader)
    except KafkaError as error:
        return ListOffsetsPartitionResponse(
            partition_index=index, error_code=error.code, timestamp=-1, offset=-1, leader_epoch=-1
        )
    return ListOffsetsPartitionResponse(partition_index=index, timestamp=timestamp, offset=offset, leader_epoch=epoch)


def _look_up(broker: Broker, topic: str, wanted: ListOffsetsPartition, reader: _Reader) -> tuple[int, int, int]:
    partition = broker.partitions.get(topic, wanted.partition_index)
    partition.check_leader_epoch(wanted.current_leader_epoch)
    log, read_committed = partition.log, reader.read_committed
    if wanted.timestamp == OffsetSpec.LATEST and reader.is_replica:
        return -1, log.log_end_offset, partition.leader_epoch
    if wanted.timestamp == OffsetSpec.LATEST and not partition.knows_committed:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "a new leader does not know yet what is committed")
    match wanted.timestamp:
        case OffsetSpec.LATEST:
            return -1, partition.readable_end(read_committed), partition.leader_epoch
        case OffsetSpec.EARLIEST | OffsetSpec.EARLIEST_LOCAL:
            start = log.log_start_offset
            # Nothing is written yet from the start on: whatever will be is ours.
            is_empty = start == log.log_end_offset
            return -1, start, partition.leader_epoch if is_empty else log.leader_epochs.epoch_for_offset(start)
        case OffsetSpec.MAX_TIMESTAMP:
            found = log.max_timestamp_offset()
            if found is not None and found.offset >= partition.readable_end(read_committed):
                found = None
        case OffsetSpec.LATEST_TIERED | OffsetSpec.EARLIEST_PENDING_UPLOAD:
            return -1, -1, -1
        case timestamp if timestamp < 0:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{timestamp} is no special timestamp of this version")
        case timestamp:
            found = log.offset_for_timestamp(timestamp, end_offset=partition.readable_end(read_committed))
    if found is None:
        return -1, -1, -1
    return found.timestamp, found.offset, log.leader_epochs.epoch_for_offset(found.offset)
