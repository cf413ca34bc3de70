"""The batches of one producer for one partition: in order, pipelined, each exactly once.

Theory of operation. Batches are numbered by sequence when they are appended, and a few of them (at most five, as far
back as a broker remembers) may be on their way at a time. While all goes well the stream just sends. When an answer
says "try again", or none comes, nothing new is sent until every batch on its way has settled; then those that are not
acknowledged are sent again, in order, with their old numbers, and one at a time: a batch that is in the log already,
its answer lost, must not be overtaken by five others, or the broker could not recognise it any more. A broker that has
a batch answers with its old offset, so nothing is doubled; one that missed a batch refuses those behind it
(OUT_OF_ORDER_SEQUENCE_NUMBER), so nothing is reordered. That code is therefore an error only for the oldest batch.

What a batch that cannot be delivered means for those behind it is a matter of the mode:

    GIVEN        the identity is somebody else's (a transaction, a Spark driver): the stream is broken for good, and
                 everything pending fails. Whoever owns the identity gets a new epoch.
    IDEMPOTENT   the epoch belongs to this stream: it is bumped, the rest is numbered from 0 again and goes on. The bump
                 also makes sure that the lost batch cannot arrive late. Batches of the rest that may be in the log
                 already keep their numbers until that is known: under new ones they would be written twice. A gap
                 before the oldest batch, left by a lost one or because the broker has forgotten this producer (a
                 topic made anew, data lost), means that none of them is: it too is mended by a new epoch.
    PLAIN        no identity, no numbers: the rest goes on. A batch whose answer was lost may be written twice.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, NamedTuple

from oncelog.client.cluster import Cluster
from oncelog.client.connection import Connection
from oncelog.client.deadline import Deadline
from oncelog.client.encoded_batch import EncodedBatch
from oncelog.client.errors import ConnectionLost, IllegalState, KafkaError, TimedOut, error_of, is_retriable
from oncelog.client.produce_channel import ProduceChannel
from oncelog.client.routes import LEADER_MOVED
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import EPOCH_EXHAUSTED, ProducerEpoch, ProducerIdAndEpoch, TopicPartition, next_sequence
from oncelog.protocol.messages.produce import PartitionProduceResponse

IN_FLIGHT_MAX: Final = 5
"""A broker remembers the last five batches of a producer: more on their way could not be told from duplicates."""
_FORGOTTEN: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


class Mode(Enum):
    GIVEN = "given"
    IDEMPOTENT = "idempotent"
    PLAIN = "plain"


class Delivery(NamedTuple):
    """Where a batch is in the log. The offset is -1 when the broker does not tell (acks=0, or an old duplicate)."""

    partition: TopicPartition
    base_offset: int
    log_append_time_ms: int
    records_count: int


class _Pending:
    __slots__ = ("attempts", "batch", "data", "deadline", "delivered", "failure", "in_flight", "sequence")

    def __init__(self, batch: EncodedBatch, deadline: Deadline, delivered: asyncio.Future[Delivery]) -> None:
        self.batch = batch
        self.deadline = deadline
        self.delivered = delivered
        self.sequence = -1
        self.data: bytes | None = None
        self.attempts = 0
        self.in_flight = False
        self.failure: KafkaError | None = None

    @property
    def may_be_written(self) -> bool:
        """Out of order is what a broker says of a batch that it has not, nor any behind it."""
        is_behind_gap = self.failure is not None and self.failure.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return self.attempts > 0 and not is_behind_gap


NewIdentity = Callable[[], Awaitable[ProducerIdAndEpoch]]


class PartitionStream:
    def __init__(
        self,
        cluster: Cluster,
        channel: ProduceChannel,
        partition: TopicPartition,
        identity: ProducerIdAndEpoch,
        *,
        mode: Mode,
        base_sequence: int = 0,
        in_flight_max: int = IN_FLIGHT_MAX,
        retries: float = math.inf,
        new_identity: NewIdentity | None = None,
    ) -> None:
        self.partition = partition
        self.identity = identity
        self.next_sequence = base_sequence
        self.broken: KafkaError | None = None
        """Why nothing can be sent any more, until `restart`."""
        self._cluster = cluster
        self._channel = channel
        self._mode = mode
        self._in_flight_max = in_flight_max
        self._retries = retries
        self._new_identity = new_identity
        self._sent: list[_Pending] = []
        """Sent and not acknowledged, in order; those that failed stay here until the others have settled."""
        self._waiting: deque[_Pending] = deque()
        self._in_flight = 0
        self._recovering = False
        self._moved = False
        self._progress = asyncio.Event()
        self._pump_task: asyncio.Task[None] | None = None
        self._backoff = cluster.backoff()

    @property
    def pending_count(self) -> int:
        return len(self._sent) + len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether a batch appended now would be sent at once."""
        return not self._waiting and not self._recovering and self._has_window(retried=False)

    def append(self, batch: EncodedBatch, deadline: Deadline) -> asyncio.Future[Delivery]:
        """Queue a batch behind the others. The future is its delivery, or why there is none."""
        delivered: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        if self.broken is not None:
            delivered.set_exception(self.broken)
            return delivered
        pending = _Pending(batch, deadline, delivered)
        self._number(pending)
        self._waiting.append(pending)
        self._pump()
        return delivered

    async def settled(self) -> None:
        """Wait until every batch appended so far is delivered or given up."""
        waits = [pending.delivered for pending in (*self._sent, *self._waiting)]
        if waits:
            await asyncio.wait(waits)

    def close(self, reason: KafkaError) -> None:
        """Give up everything that is pending."""
        self.broken = self.broken or reason
        if self._pump_task is not None:
            self._pump_task.cancel()
        self._fail_all(reason)

    async def idle(self) -> None:
        """Wait until nothing is on its way any more; after `close` that is a request's timeout at most."""
        while self._in_flight:
            await self._wait_for_progress()

    def restart(self, identity: ProducerIdAndEpoch) -> None:
        """Begin a new epoch, with sequence numbers from 0. Nothing may be pending."""
        if self.pending_count or self._in_flight:
            raise IllegalState(f"batches of {self.partition} are still pending")
        self.identity = identity
        self.broken = None
        self.next_sequence = 0
        self._recovering = self._moved = False

    def _number(self, pending: _Pending) -> None:
        pending.sequence = self.next_sequence
        pending.data = None
        self.next_sequence = next_sequence(self.next_sequence, pending.batch.records_count)

    # Sending

    def _pump(self) -> None:
        """Send what may be sent now; leave the rest to a task that can wait."""
        if self._pump_task is not None:
            self._progress.set()
            return
        connection = None if self._recovering else self._cluster.open_leader(self.partition)
        if connection is not None:
            self._send_window(connection)
        if self._recovering or (connection is None and self._waiting):
            self._pump_task = asyncio.create_task(self._pump_until_idle())
            self._pump_task.add_done_callback(self._pump_ended)

    def _pump_ended(self, task: asyncio.Task[None]) -> None:
        if task is self._pump_task:
            self._pump_task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            reason = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"sending to {self.partition} failed: {error!r}")
            reason.__cause__ = error
            self.close(reason)

    async def _pump_until_idle(self) -> None:
        while self.broken is None:
            if self._recovering:
                await self._recover()
            elif not self._waiting:
                break
            elif not self._has_window(retried=self._waiting[0].attempts > 0):
                await self._wait_for_progress()
            else:
                connection = await self._reach_leader()
                if connection is not None and not self._recovering:
                    self._send_window(connection)
        self._pump_task = None

    async def _reach_leader(self) -> Connection | None:
        """A connection to the leader, or None when the oldest batch ran out of time without one."""
        oldest = self._sent[0] if self._sent else self._waiting[0]
        try:
            return await self._cluster.leader(self.partition, oldest.deadline)
        except KafkaError as error:
            if oldest.in_flight:
                await self._wait_for_progress()
            else:
                # One that failed before may have run out of time since: only recovery gives it up.
                oldest.failure = oldest.failure or error
                self._recovering = True
            return None

    async def _wait_for_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    def _send_window(self, connection: Connection) -> None:
        while self._waiting and self._has_window(retried=self._waiting[0].attempts > 0):
            self._send(self._waiting.popleft(), connection)

    def _has_window(self, *, retried: bool) -> bool:
        """Whether one more batch may be on its way: a retried one only alone, a new one not beside a retried one."""
        alone = retried or (bool(self._sent) and self._sent[0].attempts > 1)
        return len(self._sent) < (1 if alone else self._in_flight_max)

    def _send(self, pending: _Pending, connection: Connection) -> None:
        if pending.data is None:
            transactional = self._channel.transactional_id is not None
            pending.data = pending.batch.stamp(self.identity, pending.sequence, transactional=transactional)
        pending.attempts += 1
        pending.in_flight = True
        pending.failure = None
        self._sent.append(pending)
        self._in_flight += 1
        answer = self._channel.send(connection, self.partition, pending.data, pending.deadline.remaining_ms)
        answer.add_done_callback(lambda done: self._settle(pending, done))

    # Answers

    def _settle(self, pending: _Pending, done: asyncio.Future[PartitionProduceResponse]) -> None:
        pending.in_flight = False
        self._in_flight -= 1
        failure = _failure_of(self.partition, done)
        if self.broken is None:
            if failure is None:
                self._acknowledge(pending, done.result())
            else:
                pending.failure = failure
                self._recovering = True
                self._moved |= failure.code in LEADER_MOVED
            self._pump()
        self._progress.set()

    def _acknowledge(self, pending: _Pending, answer: PartitionProduceResponse) -> None:
        self._sent.remove(pending)
        self._backoff.reset()
        if not pending.delivered.done():
            pending.delivered.set_result(
                Delivery(self.partition, answer.base_offset, answer.log_append_time_ms, pending.batch.records_count)
            )

    # Recovery

    async def _recover(self) -> None:
        """Wait for all that is on its way, decide about each failure, and let the rest wait for sending again."""
        while self._in_flight:
            await self._wait_for_progress()
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        if self._moved:
            self._cluster.routes.forget_leader(self.partition)
            self._moved = False
        if self._waiting:
            await self._judge_waiting(self._waiting[0])
        self._recovering = False

    async def _judge_waiting(self, oldest: _Pending) -> None:
        failure = oldest.failure
        lost = [pending for pending in self._waiting if self._is_lost(pending, oldest)]
        if lost:
            await self._give_up(lost)
            return
        if failure is not None and failure.code in _FORGOTTEN:
            await self._renumber()
        await self._cluster.pause(self._backoff, oldest.deadline, failure)

    def _is_lost(self, pending: _Pending, oldest: _Pending) -> bool:
        """Whether this batch is beyond retrying."""
        failure = pending.failure
        if failure is None:
            return pending.deadline.expired
        if failure.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and pending is not oldest:
            return False
        mended = self._mode is Mode.IDEMPOTENT and failure.code in _FORGOTTEN
        if not mended and not is_retriable(failure):
            return True
        return pending.deadline.expired or pending.attempts > self._retries

    async def _give_up(self, lost: list[_Pending]) -> None:
        reasons = [(pending, self._reason(pending)) for pending in lost]
        if self._mode is Mode.GIVEN:
            self.broken = reasons[0][1]
            self._fail_all(self.broken)
            return
        for pending, reason in reasons:
            self._waiting.remove(pending)
            if not pending.delivered.done():
                pending.delivered.set_exception(reason)
        if self._mode is Mode.IDEMPOTENT and not any(pending.may_be_written for pending in self._waiting):
            await self._renumber()

    def _reason(self, pending: _Pending) -> KafkaError:
        failure = pending.failure
        if failure is None or is_retriable(failure) or (self._mode is Mode.IDEMPOTENT and failure.code in _FORGOTTEN):
            last = f"last failure: {failure}" if failure else "it was never sent"
            return TimedOut(f"a batch for {self.partition} was not delivered in time: {last}")
        return failure

    async def _renumber(self) -> None:
        """Bump the epoch, so that what was given up can never arrive, and number the rest from 0."""
        if self.identity.epoch >= EPOCH_EXHAUSTED and self._new_identity is not None:
            try:
                self.identity = await self._new_identity()
            except KafkaError as error:
                self.broken = error
                self._fail_all(error)
                return
        else:
            self.identity = ProducerIdAndEpoch(self.identity.producer_id, ProducerEpoch(self.identity.epoch + 1))
        self.next_sequence = 0
        for pending in self._waiting:
            self._number(pending)

    def _fail_all(self, reason: KafkaError) -> None:
        given_up = [*self._sent, *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for entry in given_up:
            if not entry.delivered.done():
                entry.delivered.set_exception(reason)


def _failure_of(partition: TopicPartition, done: asyncio.Future[PartitionProduceResponse]) -> KafkaError | None:
    if done.cancelled():
        return ConnectionLost("the request was given up")
    error = done.exception()
    if error is not None:
        return error if isinstance(error, KafkaError) else ConnectionLost(str(error))
    answer = done.result()
    if answer.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        return None
    details = [answer.error_message or "", *(e.batch_index_error_message or "" for e in answer.record_errors)]
    return error_of(answer.error_code, "; ".join([f"partition {partition}", *filter(None, details)]))
