"""Fetches of other brokers, which follow partitions that are led here. See `cluster.replica_fetch` for one partition.

A fetch that finds nothing new waits, and is woken by every append. Each fetch of a session (`server.fetch_session`)
counts as a fetch of all its partitions: of those that it does not name, the follower has what it had before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.cluster.partition import Partition, watch_tokens
from oncelog.cluster.replica_fetch import Fetcher, answer_replica
from oncelog.core.clock import Timer
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NodeId
from oncelog.core.promise import Promise
from oncelog.core.steps import at_once
from oncelog.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext, end_nothing
from oncelog.server.fetch_session import FetchTarget

if TYPE_CHECKING:  # one node does without it, and starts faster
    from oncelog.server.replication import Replication

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
    if not context.permits(Operation.CLUSTER_ACTION, Resource.CLUSTER):
        return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    context.is_of_broker = True
    try:
        return _ReplicaFetch(broker, broker.replication, request, context, fetcher).start()
    except KafkaError as error:
        return FetchResponse(error_code=error.code)


class _ReplicaFetch:
    def __init__(
        self,
        broker: Broker,
        replication: Replication,
        request: FetchRequest,
        context: RequestContext,
        fetcher: Fetcher,
    ) -> None:
        """Raises KafkaError if there is no such fetch session."""
        self._broker = broker
        self._replication = replication
        self._throttle = replication.leader_throttle
        self._request = request
        begun = at_once(replication.fetch_sessions.begin(request, broker.steady_ms()))
        self._session, self._wanted, self._is_incremental = begun
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
        reads = self._read_all(is_repetition=False)
        is_enough = self._is_urgent or self._size_bytes >= self._request.min_bytes
        if is_enough or self._request.max_wait_ms <= 0 or not self._watched:
            return self._answer(reads)
        self._promise = Promise()
        self._token = next(watch_tokens)
        for partition in self._watched:
            partition.watch(self._token, self._wake)
        self._timer = self._broker.scheduler.call_later_ms(self._request.max_wait_ms, self._finish)
        self._context.peer.on_gone = self._finish
        # This fetch may have committed something, and whoever waited for it may have appended to a partition that was
        # read before: a coordinator, when a marker is committed.
        self._wake()
        return self._promise

    def _wake(self) -> None:
        # Several appends of one turn of the loop lead to one look, which then finds them all.
        if not self._is_waking:
            self._is_waking = True
            self._broker.scheduler.call_later_ms(0, self._look_again)

    def _look_again(self) -> None:
        self._is_waking = False
        if self._promise is not None and self._has_news():
            self._finish()

    def _has_news(self) -> bool:
        """There is more to read or to delete, or this broker does not lead any more."""
        for target in self._wanted:
            try:
                partition = self._locate(target)
            except KafkaError:
                return True
            if partition.closed or partition.leader_epoch != target.current_leader_epoch >= 0:
                return True
            if partition.log_start_offset > target.log_start_offset:
                return True
            if partition.log_end_offset > target.fetch_offset and not self._is_held(partition):
                return True
        return False

    def _is_held(self, partition: Partition) -> bool:
        """Whether a follower that is not in sync gets nothing now, so that moving replicas leaves room for others."""
        if self._fetcher.broker_id in partition.state.in_sync:
            return False
        return self._throttle.hold_ms(*partition.topic_partition) > 0

    def _finish(self) -> None:
        promise, self._promise = self._promise, None
        self._context.peer.on_gone = end_nothing
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._watched:
            partition.unwatch(self._token)
        if promise is not None:
            promise.resolve(self._answer(self._read_all(is_repetition=True)))

    def _read_all(self, *, is_repetition: bool) -> list[tuple[FetchTarget, PartitionData]]:
        self._size_bytes, self._watched = 0, []
        return [(target, self._read(target, is_repetition)) for target in self._wanted]

    def _answer(self, reads: list[tuple[FetchTarget, PartitionData]]) -> FetchResponse:
        topics: dict[object, FetchableTopicResponse] = {}
        delivered = []
        for target, data in reads:
            if self._is_incremental and not target.is_news(data):
                continue
            target.note(data)
            if data.records:
                delivered.append(target.key)
            key = target.topic_id if self._is_by_id else target.topic
            if key not in topics:
                topics[key] = FetchableTopicResponse(topic=target.topic, topic_id=target.topic_id)
            topics[key].partitions.append(data)
        if self._session is not None:
            self._replication.fetch_sessions.rotate(self._session, delivered)
        session_id = 0 if self._session is None else self._session.session_id
        return FetchResponse(session_id=session_id, responses=list(topics.values()))

    def _read(self, target: FetchTarget, is_repetition: bool) -> PartitionData:
        try:
            partition = self._locate(target)
            is_held = self._is_held(partition)
            data = answer_replica(
                partition,
                target,
                self._fetcher,
                now_ms=self._broker.steady_ms(),
                max_bytes=0 if is_held else self._max_bytes - self._size_bytes,
                must_progress=self._size_bytes == 0 and not is_held,
                is_repetition=is_repetition,
            )
        except KafkaError as error:
            self._is_urgent = True
            return failed_partition(target.partition, error.code)
        self._watched.append(partition)
        size_bytes = len(data.records or b"")
        self._size_bytes += size_bytes
        self._throttle.record(*partition.topic_partition, size_bytes)
        self._is_urgent = self._is_urgent or data.diverging_epoch.epoch >= 0
        if not is_repetition:
            self._replication.expand(partition)
        return data

    @property
    def _is_by_id(self) -> bool:
        return self._context.api_version >= _TOPIC_ID_VERSION

    def _locate(self, target: FetchTarget) -> Partition:
        if self._is_by_id:
            known = self._broker.metadata.topics_by_id.get(target.topic_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            target.topic = known.name
        return self._broker.partitions.get(target.topic, target.partition)


def failed_partition(index: int, code: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=index, error_code=code, high_watermark=-1, last_stable_offset=-1, log_start_offset=-1,
        aborted_transactions=None, preferred_read_replica=-1, records=b"",
    )  # fmt: skip
