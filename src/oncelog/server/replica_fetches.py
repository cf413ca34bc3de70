"""Fetches of other brokers, which follow partitions that are led here. See `cluster.replica_fetch` for one partition.

There are no fetch sessions: a follower names all of its partitions each time, and is answered about all of them. A
fetch that finds nothing new waits, and is woken by every append.
"""

from __future__ import annotations

from oncelog.cluster.partition import Partition, watch_tokens
from oncelog.cluster.replica_fetch import Fetcher, answer_replica
from oncelog.core.clock import Timer
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NodeId
from oncelog.core.promise import Promise
from oncelog.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext

_TOPIC_ID_VERSION = 13


def replica_of(request: FetchRequest) -> Fetcher | None:
    """The broker that fetches; None for a consumer."""
    state = request.replica_state
    replica_id = state.replica_id if state.replica_id >= 0 else request.replica_id
    return Fetcher(NodeId(replica_id), state.replica_epoch) if replica_id >= 0 else None


def serve_replica(
    broker: Broker, request: FetchRequest, context: RequestContext
) -> FetchResponse | Promise[FetchResponse]:
    fetcher = replica_of(request)
    if fetcher is None or broker.replication is None:
        return FetchResponse(error_code=ErrorCode.INVALID_REQUEST)
    if not context.may(Operation.CLUSTER_ACTION, Resource.CLUSTER):
        return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    context.is_of_broker = True
    return _ReplicaFetch(broker, request, context, fetcher).start()


class _ReplicaFetch:
    def __init__(self, broker: Broker, request: FetchRequest, context: RequestContext, fetcher: Fetcher) -> None:
        self._broker = broker
        self._request = request
        self._context = context
        self._fetcher = fetcher
        self._max_bytes = min(request.max_bytes, broker.fetch_max_bytes)
        self._is_urgent = False
        """Whether there is an error or a divergence to tell."""
        self._size_bytes = 0
        self._promise: Promise[FetchResponse] | None = None
        self._token = 0
        self._timer: Timer | None = None
        self._watched: list[Partition] = []
        self._is_waking = False

    def start(self) -> FetchResponse | Promise[FetchResponse]:
        response = self._read_all(is_repetition=False)
        is_enough = self._is_urgent or self._size_bytes >= self._request.min_bytes
        if is_enough or self._request.max_wait_ms <= 0 or not self._watched:
            return response
        self._promise = Promise()
        self._token = next(watch_tokens)
        for partition in self._watched:
            partition.watch(self._token, self._wake)
        self._timer = self._broker.scheduler.call_later_ms(self._request.max_wait_ms, self._finish)
        return self._promise

    def _wake(self) -> None:
        # Several appends of one turn of the loop lead to one look, which then finds them all.
        if not self._is_waking:
            self._is_waking = True
            self._broker.scheduler.call_later_ms(0, self._look_again)

    def _look_again(self) -> None:
        self._is_waking = False
        if self._promise is not None and (not self._context.peer.connected or self._has_news()):
            self._finish()

    def _has_news(self) -> bool:
        """There is more to read, or this broker does not lead any more."""
        wanted = ((topic, entry) for topic in self._request.topics for entry in topic.partitions)
        for topic, entry in wanted:
            try:
                partition = self._locate(topic, entry)
            except KafkaError:
                return True
            if partition.closed or partition.leader_epoch != entry.current_leader_epoch >= 0:
                return True
            if partition.log_end_offset > entry.fetch_offset:
                return True
        return False

    def _finish(self) -> None:
        promise, self._promise = self._promise, None
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._watched:
            partition.unwatch(self._token)
        if promise is not None:
            promise.resolve(self._read_all(is_repetition=True))

    def _read_all(self, *, is_repetition: bool) -> FetchResponse:
        self._size_bytes, self._watched = 0, []
        return FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=[self._read(topic, entry, is_repetition) for entry in topic.partitions],
                )
                for topic in self._request.topics
            ]
        )

    def _read(self, topic: FetchTopic, entry: FetchPartition, is_repetition: bool) -> PartitionData:
        try:
            partition = self._locate(topic, entry)
            data = answer_replica(
                partition,
                entry,
                self._fetcher,
                now_ms=self._broker.steady_ms(),
                max_bytes=self._max_bytes - self._size_bytes,
                must_progress=self._size_bytes == 0,
                is_repetition=is_repetition,
            )
        except KafkaError as error:
            self._is_urgent = True
            return failed_partition(entry.partition, error.code)
        self._watched.append(partition)
        self._size_bytes += len(data.records or b"")
        self._is_urgent = self._is_urgent or data.diverging_epoch.epoch >= 0
        if not is_repetition and self._broker.replication is not None:
            self._broker.replication.expand(partition)
        return data

    def _locate(self, topic: FetchTopic, entry: FetchPartition) -> Partition:
        if self._context.api_version >= _TOPIC_ID_VERSION:
            known = self._broker.metadata.topics_by_id.get(topic.topic_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            topic.topic = known.name
        return self._broker.partitions.get(topic.topic, entry.partition)


def failed_partition(index: int, code: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=index, error_code=code, high_watermark=-1, last_stable_offset=-1, log_start_offset=-1,
        aborted_transactions=None, preferred_read_replica=-1, records=b"",
    )  # fmt: skip
