"""Fetch (1), v4-18: reads batches as they lie on disk, with long polling and fetch sessions.

A read_committed reader is bounded by the last stable offset and told which transactions in its range were aborted.
The first partition with data gives at least one whole batch, whatever the limits say (KIP-74).
Fetches of other brokers are served by `server.replica_fetches`.
Followers serve consumers up to the high watermark that they know, and leaders send consumers to a follower in their
rack, if `replica.selector.class` says so (KIP-392).
Deviation: a consumer that names neither a rack nor a leader epoch is not served by a follower, since it may not know
that the leader has changed.
"""

from __future__ import annotations

from oncelog.cluster.partition import Partition, watch_tokens
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from oncelog.server.aborted_transactions import AbortedTransactions
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import HANG_UP, HangUp, RequestContext, end_nothing
from oncelog.server.fetch_session import FetchSession, FetchTarget, PartitionKey
from oncelog.server.memory_budget import SMALL_ANSWER_BYTES
from oncelog.server.replica_fetches import failed_partition, replica_of, serve_replica
from oncelog.server.turns import Steps

_TOPIC_ID_VERSION = 13
_FOLLOWERS_VERSION = 11
_PARTITIONS_PER_STEP = 16
_READ_BYTES = 300
"""Memory of a partition that is read, without its records."""
_WAITING_BYTES = 200
"""Memory of a partition that a reader waits for, beside what the request is counted as."""
_PARTITIONS_PER_MS = 200
"""A reader that waits for many is woken less often than there are appends: each look goes through all of them."""

Answer = FetchResponse | Promise[FetchResponse | HangUp]
Outcome = Answer | Promise[FetchResponse] | Steps[Answer]


def handle(broker: Broker, request: FetchRequest, context: RequestContext) -> Outcome:
    if broker.is_in_cluster and replica_of(request) is not None:
        return serve_replica(broker, request, context)
    return _fetch(broker, request, context)


def _fetch(broker: Broker, request: FetchRequest, context: RequestContext) -> Steps[Answer]:
    try:
        session, wanted, incremental = yield from broker.fetch_sessions.begin(request, broker.steady_ms())
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    by_id = context.api_version >= _TOPIC_ID_VERSION
    fetch = _Fetch(broker, request, context, session, wanted, incremental, by_id)
    return (yield from fetch.start())


@dataclass(slots=True)
class _Read:
    target: FetchTarget
    data: PartitionData
    size_bytes: int
    partition: Partition | None = None
    """Whose aborted transactions below the upper bound are to be named."""
    upper_bound_offset: int = 0


class _Fetch:
    """One fetch from its first look to its answer."""

    __slots__ = (
        "_broker",
        "_by_id",
        "_context",
        "_incremental",
        "_is_replica",
        "_max_bytes",
        "_min_bytes",
        "_promise",
        "_rack",
        "_read_committed",
        "_reported_bytes",
        "_request",
        "_session",
        "_timer",
        "_token",
        "_wake_pending",
        "_wanted",
        "_watched",
    )

    def __init__(
        self,
        broker: Broker,
        request: FetchRequest,
        context: RequestContext,
        session: FetchSession | None,
        wanted: list[FetchTarget],
        incremental: bool,
        by_id: bool,
    ) -> None:
        self._broker = broker
        self._request = request
        self._context = context
        self._session = session
        self._wanted = wanted
        self._incremental = incremental
        self._by_id = by_id
        self._rack = request.rack_id if context.api_version >= _FOLLOWERS_VERSION else ""
        self._read_committed = request.isolation_level == 1
        self._is_replica = request.replica_id >= 0 or request.replica_state.replica_id >= 0
        self._max_bytes = min(request.max_bytes, broker.fetch_max_bytes)
        if broker.quotas.are_set:
            self._max_bytes = min(self._max_bytes, broker.quotas.fetch_max_bytes(context) or self._max_bytes)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._promise: Promise[FetchResponse | HangUp] | None = None
        self._watched: list[Partition] = []
        self._wake_pending = False
        self._reported_bytes = 0

    def start(self) -> Steps[Answer]:
        reads, size_bytes, settled = yield from self._read_all()
        if size_bytes < self._min_bytes > SMALL_ANSWER_BYTES:
            self._min_bytes = min(self._min_bytes, self._broker.budget.fetch_room_bytes())
        if settled or size_bytes >= self._min_bytes or self._request.max_wait_ms <= 0 or not self._wanted:
            return (yield from self._answer(reads))
        if self._reported_bytes:
            del reads
            yield self._unreported_bytes(0)
        promise: Promise[FetchResponse | HangUp] = Promise()
        self._promise = promise
        try:
            yield from self._wait()
        except GeneratorExit:
            self._release()
            raise
        return promise

    def _wait(self) -> Steps[None]:
        peer, wake = self._context.peer, self._wake
        if len(self._wanted) >= _PARTITIONS_PER_STEP:  # few take less than the buffer that every connection has
            peer.add_work_bytes(len(self._wanted) * _WAITING_BYTES)
            self._broker.budget.make_room()
        peer.on_gone = self._end
        self._token = next(watch_tokens)
        self._timer = self._broker.scheduler.call_later_ms(self._request.max_wait_ms, self._expire)
        for number, target in enumerate(self._wanted):
            if self._promise is None:
                return
            partition = self._broker.partitions.find(target.topic, target.partition)
            if partition is not None:
                partition.watch(self._token, wake)
                self._watched.append(partition)
            if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
                yield
        if len(self._wanted) >= _PARTITIONS_PER_STEP:
            # Something may have been appended since its partition was read, in another turn.
            self._wake()

    def _wake(self) -> None:
        # Several appends of one turn of the loop lead to one look, which then finds them all.
        if not self._wake_pending:
            self._wake_pending = True
            delay_ms = len(self._wanted) // _PARTITIONS_PER_MS
            self._broker.scheduler.call_later_ms(delay_ms, lambda: self._look_again(is_last=False))

    def _look_again(self, *, is_last: bool) -> None:
        look = self._broker.turns.begin(self._look(is_last=is_last), self._context.peer)
        look.then(lambda failed: self._finish(failed) if failed is not None else None)

    def _look(self, *, is_last: bool) -> Steps[None]:
        """The last look takes what there is."""
        self._wake_pending = False
        if self._promise is None:
            return
        if is_last or (yield from self._has_enough()):
            reads, _, _ = yield from self._read_all()
            self._finish((yield from self._answer(reads)))

    def _has_enough(self) -> Steps[bool]:
        """Whether there is an answer now. Bytes are counted, not read: most looks of a patient reader are in vain."""
        available_bytes = 0
        for number, target in enumerate(self._wanted):
            if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
                yield
            partition = self._broker.partitions.find(target.topic, target.partition)
            if partition is None or partition.closed or not self._may_read(partition, target):
                return True
            if partition.leader_epoch != target.current_leader_epoch >= 0:
                return True
            if not partition.log.log_start_offset <= target.fetch_offset <= partition.last_valid_offset:
                return True
            end_offset = partition.readable_end(self._read_committed)
            try:
                size_bytes = partition.log.available_bytes(target.fetch_offset, end_offset=end_offset)
            except KafkaError:
                return True  # which the answer will tell
            available_bytes += min(size_bytes, target.partition_max_bytes) if size_bytes else 0
        return available_bytes >= self._min_bytes

    def _expire(self) -> None:
        if self._promise is not None:
            self._look_again(is_last=True)

    def _end(self) -> None:
        """Nobody is there to be answered: the wait could last for weeks. Thousands may go at the same moment."""
        self._broker.turns.begin(self._give_up(), self._context.peer, to_the_end=True)

    def _give_up(self) -> Steps[None]:
        watched, self._watched = self._watched, []
        for number, partition in enumerate(watched):
            partition.unwatch(self._token)
            if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
                yield
        if self._promise is not None:
            self._finish(HANG_UP)

    def _finish(self, response: FetchResponse | HangUp) -> None:
        promise = self._promise
        self._release()
        if promise is not None:
            promise.resolve(response)

    def _release(self) -> None:
        self._promise = None
        self._context.peer.on_gone = end_nothing
        self._timer.cancel()
        for partition in self._watched:
            partition.unwatch(self._token)

    def _read_all(self) -> Steps[tuple[list[_Read], int, bool]]:
        """All partitions read, their bytes, and whether something must be told at once (an error)."""
        reads: list[_Read] = []
        total_bytes = 0
        settled = False
        max_bytes = min(self._max_bytes, self._broker.budget.fetch_room_bytes())
        aborted = AbortedTransactions()
        for number, target in enumerate(self._wanted):
            if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
                yield self._unreported_bytes(total_bytes + number * _READ_BYTES)
            read = self._read(target, max_bytes - total_bytes, total_bytes == 0)
            while (partition := read.partition) is not None:
                if (yield from self._name_aborted(read, partition, aborted, total_bytes + number * _READ_BYTES)):
                    break
                read = self._read(target, max_bytes - total_bytes, total_bytes == 0)
            if read.data.error_code or read.data.preferred_read_replica >= 0:
                settled = True
            total_bytes += read.size_bytes
            reads.append(read)
        return reads, total_bytes, settled

    def _unreported_bytes(self, read_bytes: int) -> int:
        """What is held while others have their turn."""
        unreported_bytes, self._reported_bytes = read_bytes - self._reported_bytes, read_bytes
        return unreported_bytes

    def _name_aborted(
        self, read: _Read, partition: Partition, aborted: AbortedTransactions, before_bytes: int
    ) -> Steps[bool]:
        """False if the log has changed meanwhile, and is to be read again."""
        steps = aborted.name(partition, read.target.fetch_offset, read.upper_bound_offset, read.data)
        is_named = False
        try:
            while True:
                next(steps)
                yield self._unreported_bytes(before_bytes + read.size_bytes)
        except StopIteration as done:
            is_named = done.value
        except KafkaError as error:
            read.data, is_named = failed_partition(read.target.partition, error.code), True
        read.size_bytes = len(read.data.records or b"")
        return is_named

    def _read(self, target: FetchTarget, budget_bytes: int, must_progress: bool) -> _Read:
        try:
            partition = self._locate(target)
        except KafkaError as error:
            data = failed_partition(target.partition, error.code)
            data.aborted_transactions = []
            return _Read(target, data, 0)
        try:
            partition.check_leader_epoch(target.current_leader_epoch)
            if self._is_replica:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return self._read_partition(partition, target, budget_bytes, must_progress)
        except KafkaError as error:
            return _Read(target, failed_partition(target.partition, error.code), 0)

    def _locate(self, target: FetchTarget) -> Partition:
        if self._by_id:
            topic = self._broker.metadata.topics_by_id.get(target.topic_id)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            target.topic = topic.name
        if not self._is_replica:
            self._context.require(Operation.READ, Resource.TOPIC, target.topic)
        elif not self._context.permits(Operation.CLUSTER_ACTION, Resource.CLUSTER):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        partition = self._broker.partitions.kept(target.topic, target.partition)
        if not partition.is_leader and not self._may_read(partition, target):
            partition.check_leads()
        return partition

    def _may_read(self, partition: Partition, target: FetchTarget) -> bool:
        if partition.is_leader:
            return True
        knows_leader = self._context.api_version >= _FOLLOWERS_VERSION and target.current_leader_epoch >= 0
        return not self._is_replica and (knows_leader or bool(self._rack))

    def _preferred(self, partition: Partition, offset: int) -> int:
        """The follower that this consumer had better read from; -1 if there is none."""
        replication = self._broker.replication
        if replication is None or not partition.has_followers:
            return -1
        readers = replication.readers_in(partition, self._rack, offset)
        reachable = self._broker.nodes(self._context) if readers else {}
        return next((reader for reader in readers if reader in reachable), -1)

    def _read_partition(
        self, partition: Partition, target: FetchTarget, budget_bytes: int, must_progress: bool
    ) -> _Read:
        log, offset = partition.log, target.fetch_offset
        high_watermark, stable_offset = partition.high_watermark, partition.last_stable_offset
        if offset < log.log_start_offset or (offset > high_watermark and offset > partition.last_valid_offset):
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition.topic_partition} has no offset {offset}")
        data = PartitionData(
            partition_index=target.partition,
            high_watermark=high_watermark,
            last_stable_offset=stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if self._read_committed else None,
            preferred_read_replica=-1,
            records=b"",
        )
        if target.last_fetched_epoch >= 0 and self._diverges(partition, target, data):
            return _Read(target, data, 1)
        if self._rack:
            data.preferred_read_replica = self._preferred(partition, offset)
            if data.preferred_read_replica >= 0:
                return _Read(target, data, 0)
        end_offset = partition.readable_end(self._read_committed)
        max_bytes = min(target.partition_max_bytes, budget_bytes)
        if offset >= end_offset or (max_bytes <= 0 and not must_progress):
            return _Read(target, data, 0)
        result = log.read(offset, max(0, max_bytes), end_offset=end_offset, min_one_batch=must_progress)
        data.records = result.data
        read = _Read(target, data, len(result.data))
        if self._read_committed and read.size_bytes:
            read.partition, read.upper_bound_offset = partition, result.upper_bound_offset
        return read

    def _diverges(self, partition: Partition, target: FetchTarget, data: PartitionData) -> bool:
        """Whether the log has no longer what the reader read last; then it is told where they part."""
        found = partition.log.divergence(target.last_fetched_epoch, target.fetch_offset)
        if found is None:
            return False
        data.diverging_epoch = EpochEndOffset(epoch=found.epoch, end_offset=found.end_offset)
        return True

    def _answer(self, reads: list[_Read]) -> Steps[FetchResponse]:
        quotas = self._broker.quotas
        if quotas.are_set and not quotas.charge_fetch(self._context, sum(read.size_bytes for read in reads)):
            return FetchResponse(session_id=self._session.session_id if self._session is not None else 0)
        topics: dict[object, FetchableTopicResponse] = {}
        delivered: list[PartitionKey] = []
        for number, read in enumerate(reads):
            if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
                yield
            target, data = read.target, read.data
            if self._incremental and not target.is_news(data):
                continue
            target.note(data)
            key = target.topic_id if self._by_id else target.topic
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchableTopicResponse(topic=target.topic, topic_id=target.topic_id)
            topic.partitions.append(data)
            if read.size_bytes:
                delivered.append(target.key)
        if self._session is not None:
            self._broker.fetch_sessions.rotate(self._session, delivered)
        response = FetchResponse(
            session_id=self._session.session_id if self._session is not None else 0,
            responses=list(topics.values()),
        )
        if self._broker.is_in_cluster:
            from oncelog.server.current_leaders import tell_leaders

            codes = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
            refused = (
                (read.data, read.target.topic, read.target.partition) for read in reads if read.data.error_code in codes
            )
            tell_leaders(self._broker, self._context, refused, response)
        return response
