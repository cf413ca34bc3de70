"""ListOffsets (2), v1-11: offsets by time, and the special ones.

| timestamp | answer |
| --- | --- |
| -1 latest | last stable offset for read_committed, else high watermark |
| -2 earliest, -4 earliest local | log start offset |
| -3 max timestamp | offset of the record with the largest timestamp |
| -5 latest tiered, -6 earliest pending upload | -1: there is no tiered storage |

Batches with many records are read by a worker, and what it has found is kept: see `storage.batch_times`.
"""

from __future__ import annotations

import logging
from collections.abc import Set
from functools import partial
from typing import NamedTuple

from oncelog.cluster.partition import Partition
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise, gather
from oncelog.protocol.batch import read_header
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
from oncelog.server.turns import ITEM_BYTES, Steps
from oncelog.storage.batch_times import BatchTimes, FoundTimestamp, LongLookup, TimesReader, read_times
from oncelog.storage.time_lookup import first_record_from, latest_record

log = logging.getLogger("oncelog.server")

_PARTITIONS_PER_STEP = 1000

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


def handle(
    broker: Broker, request: ListOffsetsRequest, context: RequestContext
) -> Steps[ListOffsetsResponse | Promise[ListOffsetsResponse]]:
    is_single = len(request.topics) == 1 and len(request.topics[0].partitions) == 1
    twice: Set[tuple[str, int]] = frozenset() if is_single else (yield from _asked_twice(request))
    long: list[Promise[None]] = []
    reader = _Reader(request.isolation_level == 1, broker.is_in_cluster and request.replica_id >= 0)
    response = ListOffsetsResponse()
    for topic in request.topics:
        answered = ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answered)
        for wanted in topic.partitions:
            if answered.partitions or len(response.topics) > 1:
                yield ITEM_BYTES
            is_duplicate = bool(twice) and (topic.name, wanted.partition_index) in twice
            answered.partitions.append(_answer(broker, topic.name, wanted, reader, context, is_duplicate, long))
    return gather(long).map(lambda _: response) if long else response


def _asked_twice(request: ListOffsetsRequest) -> Steps[set[tuple[str, int]]]:
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in request.topics:
        for number, wanted in enumerate(topic.partitions, start=1):
            key = (topic.name, wanted.partition_index)
            if key in seen:
                twice.add(key)
            seen.add(key)
            if number % _PARTITIONS_PER_STEP == 0:
                yield
        yield
    return twice


def _answer(
    broker: Broker,
    topic: str,
    wanted: ListOffsetsPartition,
    reader: _Reader,
    context: RequestContext,
    duplicate: bool,
    long: list[Promise[None]],
) -> ListOffsetsPartitionResponse:
    """The answer for one partition. If that takes long, its promise is added to `long`, and it is filled in later."""
    response = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
    try:
        if reader.is_replica:
            context.require(Operation.CLUSTER_ACTION, Resource.CLUSTER)
        else:
            context.require(Operation.DESCRIBE, Resource.TOPIC, topic)
        if duplicate:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a partition is asked about twice")
        if wanted.timestamp < 0 and context.api_version < _SINCE_VERSION.get(wanted.timestamp, 0):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        partition = broker.partitions.get(topic, wanted.partition_index)
        partition.check_leader_epoch(wanted.current_leader_epoch)
        found = _without_lookup(partition, wanted.timestamp, reader) if wanted.timestamp < 0 else None
    except KafkaError as error:
        _fail(response, error)
        return response
    except OSError as error:
        _fail_unread(response, partition, error)
        return response
    if found is not None:
        response.timestamp, response.offset, response.leader_epoch = found
        return response
    look_up = _LookUp(broker, partition, wanted.timestamp, reader, response)
    waiting = look_up.run()
    if waiting is not None:
        long.append(waiting)
    return response


def _without_lookup(partition: Partition, timestamp: int, reader: _Reader) -> tuple[int, int, int] | None:
    """Timestamp, offset and leader epoch for what needs no look at batches; None for what does."""
    stored = partition.log
    match timestamp:
        case OffsetSpec.LATEST if reader.is_replica:
            return -1, stored.log_end_offset, partition.leader_epoch
        case OffsetSpec.LATEST if not partition.knows_committed:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "a new leader does not know yet what is committed")
        case OffsetSpec.LATEST:
            return -1, partition.readable_end(reader.read_committed), partition.leader_epoch
        case OffsetSpec.EARLIEST | OffsetSpec.EARLIEST_LOCAL:
            start = stored.log_start_offset
            # Nothing is written yet from the start on: whatever will be is ours.
            is_empty = start == stored.log_end_offset
            return -1, start, partition.leader_epoch if is_empty else stored.leader_epochs.epoch_for_offset(start)
        case OffsetSpec.LATEST_TIERED | OffsetSpec.EARLIEST_PENDING_UPLOAD:
            return -1, -1, -1
        case OffsetSpec.MAX_TIMESTAMP:
            return None
    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{timestamp} is no special timestamp of this version")


class _LookUp:
    """One partition's answer, from the question to the response, over as many turns of the loop as it takes."""

    __slots__ = ("_broker", "_partition", "_reader", "_response", "_start_offset", "_times", "_timestamp")

    def __init__(
        self,
        broker: Broker,
        partition: Partition,
        timestamp: int,
        reader: _Reader,
        response: ListOffsetsPartitionResponse,
    ) -> None:
        self._broker = broker
        self._partition = partition
        self._timestamp = timestamp
        self._reader = reader
        self._response = response
        self._start_offset = 0
        self._times: TimesReader

    def run(self) -> Promise[None] | None:
        """None if the response is complete."""
        try:
            self._partition.check_leads()
            self._tell(*self._find())
        except LongLookup as long:
            return self._go_on(long)
        except KafkaError as error:
            _fail(self._response, error)
        except OSError as error:
            _fail_unread(self._response, self._partition, error)
        except Exception as error:  # noqa: BLE001  after a wait it would come out where the wait has ended
            self._failed(error)
        return None

    def _failed(self, error: Exception) -> None:
        log.error("%s could not be looked up by time", self._partition.topic_partition, exc_info=error)
        _fail(self._response, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _go_on(self, long: LongLookup) -> Promise[None]:
        self._start_offset = long.start_offset
        if not long.batch:
            turn: Promise[None] = Promise()
            self._broker.scheduler.call_later_ms(0, lambda: turn.resolve(None))
            return turn.chain(lambda _: self.run() or Promise.resolved(None))

        def take(times: BatchTimes | Exception) -> Promise[None]:
            if isinstance(times, Exception):
                self._failed(times)
                return Promise.resolved(None)
            self._times.keep(long, times)
            found = times.first_from(max(self._timestamp, read_header(long.batch).max_timestamp if self._is_max else 0))
            if found is None and not self._is_max:
                return self.run() or Promise.resolved(None)
            try:
                self._partition.check_leads()
                self._tell(*self._visible(found))
            except KafkaError as error:
                _fail(self._response, error)
            except Exception as error:  # noqa: BLE001  as above
                self._failed(error)
            return Promise.resolved(None)

        return self._broker.long_reads.run(partial(read_times, long.batch, long.first_offset)).chain(take)

    @property
    def _is_max(self) -> bool:
        return self._timestamp == OffsetSpec.MAX_TIMESTAMP

    def _tell(self, timestamp: int, offset: int, leader_epoch: int) -> None:
        self._response.timestamp = timestamp
        self._response.offset = offset
        self._response.leader_epoch = leader_epoch

    def _find(self) -> tuple[int, int, int]:
        partition, stored = self._partition, self._partition.log
        if self._is_max:
            return self._visible(latest_record(stored, self._new_times()))
        found = first_record_from(
            stored,
            self._timestamp,
            end_offset=partition.readable_end(self._reader.read_committed),
            start_offset=self._start_offset,
            reader=self._new_times(),
        )
        return self._visible(found)

    def _new_times(self) -> TimesReader:
        self._times = TimesReader(self._partition.topic_partition, self._broker.batch_times)
        return self._times

    def _visible(self, found: FoundTimestamp | None) -> tuple[int, int, int]:
        if found is None or found.offset >= self._partition.readable_end(self._reader.read_committed):
            return -1, -1, -1
        return found.timestamp, found.offset, self._partition.log.leader_epochs.epoch_for_offset(found.offset)


def _fail(response: ListOffsetsPartitionResponse, error: KafkaError) -> None:
    response.error_code = error.code
    response.timestamp = response.offset = response.leader_epoch = -1


def _fail_unread(response: ListOffsetsPartitionResponse, partition: Partition, error: OSError) -> None:
    log.warning("%s cannot be looked up: %s", partition.topic_partition, error)
    _fail(response, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
