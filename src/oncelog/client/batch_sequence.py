"""The batches of one producer for one partition: in order, pipelined, each exactly once.

Theory of operation. Batches are numbered by sequence when they are appended, and a few of them (at most five, as far
back as a broker remembers) may be in flight at a time. While all goes well the stream just sends. When an answer
says "try again", or none comes, nothing new is sent until every batch in flight has settled; then those that are not
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

Pure: batches, answers and the time come in. `advance` says what is needed next, and `take` gives what is to be sent.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from oncelog.client.attempts import doubted
from oncelog.client.deadline import Backoff, Deadline
from oncelog.client.encoded_batch import EncodedBatch
from oncelog.client.errors import IllegalState, KafkaError, TimedOut, error_of, is_retriable
from oncelog.client.routes import LEADER_MOVED
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import EPOCH_EXHAUSTED, ProducerEpoch, ProducerIdAndEpoch, TopicPartition, next_sequence
from oncelog.protocol.messages.produce import PartitionProduceResponse

IN_FLIGHT_MAX: Final = 5
"""A broker remembers the last five batches of a producer: more in flight could not be told from duplicates."""
_FORGOTTEN: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


class Mode(Enum):
    GIVEN = "given"
    IDEMPOTENT = "idempotent"
    PLAIN = "plain"


class Need(Enum):
    """What it takes to go on."""

    NOTHING = "nothing is pending, or all of it is in flight"
    ANSWERS = "answers to what is in flight"
    TIME = "a pause, until `resume_at_s`"
    IDENTITY = "a new producer id: see `renumber`"
    LEADER = "a leader to send the next batches to"


class Delivery(NamedTuple):
    """Where a batch is in the log. The offset is -1 when the broker does not tell (acks=0, or an old duplicate)."""

    partition: TopicPartition
    base_offset: int
    log_append_time_ms: int
    records_count: int


Delivered = Callable[[Delivery | KafkaError], None]


class Pending:
    __slots__ = ("attempts", "batch", "data", "deadline", "delivered", "failure", "in_doubt", "in_flight", "sequence")

    def __init__(self, batch: EncodedBatch, deadline: Deadline, delivered: Delivered) -> None:
        self.batch = batch
        self.deadline = deadline
        self.delivered = delivered
        self.sequence = -1
        self.data = b""
        self.attempts = 0
        self.in_flight = False
        self.failure: KafkaError | None = None
        self.in_doubt = False
        """Whether an attempt before the last one may have written it."""

    @property
    def may_be_written(self) -> bool:
        """Out of order is what a broker says of a batch that it has not, nor any behind it."""
        is_behind_gap = self.failure is not None and self.failure.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return self.attempts > 0 and not is_behind_gap

    @property
    def is_open(self) -> bool:
        """Whether the last attempt alone may have written it: too few replicas are told before anything is appended."""
        has_too_few = self.failure is not None and self.failure.code == ErrorCode.NOT_ENOUGH_REPLICAS
        return self.may_be_written and not has_too_few


class BatchSequence:
    def __init__(
        self,
        partition: TopicPartition,
        identity: ProducerIdAndEpoch,
        backoff: Backoff,
        *,
        mode: Mode,
        transactional: bool = False,
        base_sequence: int = 0,
        in_flight_max: int = IN_FLIGHT_MAX,
        retries: float = math.inf,
        renewable: bool = False,
    ) -> None:
        self.partition = partition
        self.identity = identity
        self.next_sequence = base_sequence
        self.broken: KafkaError | None = None
        """Why nothing can be sent any more, until `restart`."""
        self.in_flight = 0
        self.resume_at_s = 0.0
        self.moved = False
        """The leader is to be looked for again. Whoever does that resets it."""
        self._backoff = backoff
        self._mode = mode
        self._transactional = transactional
        self._in_flight_max = in_flight_max
        self._retries = retries
        self._renewable = renewable
        self._sent: list[Pending] = []
        """Sent and not acknowledged, in order; those that failed stay here until the others have settled."""
        self._waiting: deque[Pending] = deque()
        self._recovering = False
        self._lacks_identity = False

    @property
    def pending_count(self) -> int:
        return len(self._sent) + len(self._waiting)

    @property
    def oldest(self) -> Pending:
        return self._sent[0] if self._sent else self._waiting[0]

    @property
    def has_room(self) -> bool:
        """Whether a batch appended now would be sent at once."""
        return not self._waiting and not self._recovering and self._has_window(retried=False)

    def append(self, batch: EncodedBatch, deadline: Deadline, delivered: Delivered) -> None:
        """Queue a batch behind the others; `delivered` is called with its place, or with why it was not written."""
        if self.broken is not None:
            delivered(self.broken)
            return
        pending = Pending(batch, deadline, delivered)
        self._number(pending)
        self._waiting.append(pending)

    def close(self, reason: KafkaError) -> None:
        """Give up everything that is pending. What is in flight is still settled."""
        self.broken = self.broken or reason
        given_up = [*self._sent, *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for pending in given_up:
            pending.delivered(reason)

    def restart(self, identity: ProducerIdAndEpoch) -> None:
        """Begin a new epoch, with sequence numbers from 0. Nothing may be pending."""
        if self.pending_count or self.in_flight:
            raise IllegalState(f"batches of {self.partition} are still pending")
        self.identity = identity
        self.broken = None
        self.next_sequence = 0
        self._recovering = self._lacks_identity = self.moved = False

    def _number(self, pending: Pending) -> None:
        pending.sequence = self.next_sequence
        pending.data = b""
        self.next_sequence = next_sequence(self.next_sequence, pending.batch.records_count)

    # Sending

    def advance(self, now_s: float) -> Need:
        """Decide about failures as soon as nothing is in flight, and say what is needed to go on."""
        if self._recovering and not self.in_flight and self.broken is None:
            self._recover(now_s)
        if self.broken is not None:
            return Need.NOTHING
        if self._recovering:
            return Need.ANSWERS
        if self._lacks_identity:
            return Need.IDENTITY
        if not self._waiting:
            return Need.NOTHING
        if self.resume_at_s > now_s:
            return Need.TIME
        return Need.LEADER if self._has_window(retried=self._waiting[0].attempts > 0) else Need.ANSWERS

    def take(self) -> list[Pending]:
        """What is to be sent now, in this order; each is to be settled."""
        taken = []
        while not self._recovering and self._waiting and self._has_window(retried=self._waiting[0].attempts > 0):
            pending = self._waiting.popleft()
            if not pending.data:
                stamp = pending.batch.stamp
                pending.data = stamp(self.identity, pending.sequence, transactional=self._transactional)
            pending.in_doubt |= pending.is_open
            pending.attempts += 1
            pending.in_flight = True
            pending.failure = None
            self._sent.append(pending)
            self.in_flight += 1
            taken.append(pending)
        return taken

    def _has_window(self, *, retried: bool) -> bool:
        """Whether one more batch may be in flight: a retried one only alone, a new one not beside a retried one."""
        alone = retried or (bool(self._sent) and self._sent[0].attempts > 1)
        return len(self._sent) < (1 if alone else self._in_flight_max)

    def unreachable(self, error: KafkaError) -> None:
        """No leader was found in the time of the oldest batch. One that is in flight is decided by its answer."""
        oldest = self.oldest
        if not oldest.in_flight:
            # One that failed before may have run out of time since: only recovery gives it up.
            oldest.failure = oldest.failure or error
        self._recovering = True

    # Answers

    def settle(self, pending: Pending, answer: PartitionProduceResponse | KafkaError) -> None:
        """What became of a batch that was sent."""
        pending.in_flight = False
        self.in_flight -= 1
        if self.broken is not None:
            return
        if isinstance(answer, KafkaError):
            self._fail(pending, answer)
        elif answer.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._sent.remove(pending)
            self._backoff.reset()
            count = pending.batch.records_count
            pending.delivered(Delivery(self.partition, answer.base_offset, answer.log_append_time_ms, count))
        else:
            details = [answer.error_message or "", *(e.batch_index_error_message or "" for e in answer.record_errors)]
            text = "; ".join([f"partition {self.partition}", *filter(None, details)])
            self._fail(pending, error_of(answer.error_code, text))

    def _fail(self, pending: Pending, failure: KafkaError) -> None:
        pending.failure = failure
        self._recovering = True
        self.moved |= failure.code in LEADER_MOVED

    # Recovery

    def _recover(self, now_s: float) -> None:
        """All that was in flight has settled: decide about each failure, and let the rest wait for sending again."""
        self._recovering = False
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        if not self._waiting:
            return
        oldest = self._waiting[0]
        failure = oldest.failure
        lost = [pending for pending in self._waiting if self._is_lost(pending, oldest, now_s)]
        if lost:
            self._give_up(lost)
            return
        if failure is not None and failure.code in _FORGOTTEN:
            self._bump_epoch()
        self.resume_at_s = min(now_s + self._backoff.next_ms(failure) / 1000, oldest.deadline.at_s)

    def _is_lost(self, pending: Pending, oldest: Pending, now_s: float) -> bool:
        """Whether this batch is beyond retrying."""
        failure = pending.failure
        expired = pending.deadline.at_s <= now_s
        if failure is None:
            return expired
        if failure.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and pending is not oldest:
            return False
        mended = self._mode is Mode.IDEMPOTENT and failure.code in _FORGOTTEN
        if not mended and not is_retriable(failure):
            return True
        return expired or pending.attempts > self._retries

    def _give_up(self, lost: list[Pending]) -> None:
        if self._mode is Mode.GIVEN:
            self.close(self._reason(lost[0]))
            return
        for pending in lost:
            self._waiting.remove(pending)
        if self._mode is Mode.IDEMPOTENT and not any(pending.may_be_written for pending in self._waiting):
            self._bump_epoch()
        for pending in lost:
            pending.delivered(self._reason(pending))

    def _reason(self, pending: Pending) -> KafkaError:
        failure = pending.failure
        if failure is None or is_retriable(failure) or (self._mode is Mode.IDEMPOTENT and failure.code in _FORGOTTEN):
            last = f"last failure: {failure}" if failure else "it was never sent"
            reason: KafkaError = TimedOut(f"a batch for {self.partition} was not delivered in time: {last}")
            in_doubt = pending.in_doubt or pending.is_open
        else:
            reason, in_doubt = failure, pending.in_doubt
        # What is part of a transaction is decided with that.
        return doubted(reason) if in_doubt and not self._transactional else reason

    def _bump_epoch(self) -> None:
        """Take a new epoch, so that what was given up can never arrive."""
        if self.identity.epoch >= EPOCH_EXHAUSTED and self._renewable:
            self._lacks_identity = True
        else:
            self.renumber(ProducerIdAndEpoch(self.identity.producer_id, ProducerEpoch(self.identity.epoch + 1)))

    def renumber(self, identity: ProducerIdAndEpoch) -> None:
        """Go on under another identity, and number what waits from 0."""
        self._lacks_identity = False
        self.identity = identity
        self.next_sequence = 0
        for pending in self._waiting:
            self._number(pending)
