"""Producers: transactional ones in the dialects of real clients, and idempotent ones.

What they do on an answer follows the clients: retry what may be retried, with the same sequences; abort what can only
be aborted; start over as a new instance when fenced. Which batch is sent when, and again, is decided by the own
`BatchSequence` of the product; what a refusal means, by its `classification`.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from oncelog.client.batch_sequence import BatchSequence, Delivery, Mode, Need, Pending
from oncelog.client.classification import produce_error
from oncelog.client.deadline import Backoff, Deadline
from oncelog.client.encoded_batch import split_batches
from oncelog.client.errors import AbortableError, ConnectionLost, FatalError, KafkaError, TimedOut, TransactionError
from oncelog.client.offsets import GroupMetadata
from oncelog.client.transaction import AsyncTransactionClient
from oncelog.core.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequest
from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from tests.simulation import wire
from tests.simulation.actors import Actor, Fenced, MustAbort, Script
from tests.simulation.client import FOR_EVER_MS, ActorNetwork, play
from tests.simulation.model import SentRecord, Transaction
from tests.simulation.network import LOST, Call
from tests.simulation.wire import Identity, Place

if TYPE_CHECKING:
    from tests.simulation.history import History

RETRIABLE: Final = frozenset({5, 6, 7, 14, 15, 16, 19, 20, 51, 56})
OUT_OF_ORDER: Final = 45
UNKNOWN_MAPPING: Final = 49
BACKOFF_MS: Final = 10
BACKOFF_MAX_MS: Final = 80
UNKNOWN_TOPIC_MS: Final = 300
T = TypeVar("T")
TABLE_KEYS: Final = ("red", "green", "blue")


@dataclass(frozen=True)
class Dialect:
    """The versions a client speaks. Without `add` partitions are added by the broker (TV2)."""

    name: str
    init: int
    produce: int
    end: int
    txn_offset_commit: int
    add: int | None = None
    add_offsets: int = 0

    @property
    def bumps_epochs(self) -> bool:
        return self.add is None

    @property
    def versions(self) -> dict[ApiKey, int]:
        """As a broker would have to serve them for the product's client to speak them."""
        return {
            ApiKey.INIT_PRODUCER_ID: self.init,
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add or 0,
            ApiKey.ADD_OFFSETS_TO_TXN: self.add_offsets,
            ApiKey.TXN_OFFSET_COMMIT: self.txn_offset_commit,
            ApiKey.END_TXN: self.end,
        }


LIBRDKAFKA = Dialect("librdkafka", init=4, produce=10, end=1, txn_offset_commit=3, add=0, add_offsets=0)
KAFKA_PYTHON = Dialect("kafka-python", init=4, produce=9, end=3, txn_offset_commit=3, add=3, add_offsets=3)
JAVA_3 = Dialect("Java 3.9", init=4, produce=11, end=4, txn_offset_commit=4, add=3, add_offsets=3)
JAVA_4 = Dialect("Java 4", init=5, produce=12, end=5, txn_offset_commit=5)
JAVA_4_1 = Dialect("Java 4.1", init=5, produce=13, end=5, txn_offset_commit=5)
NEW_DIALECTS: Final = (JAVA_4, JAVA_4_1)
OLD_DIALECTS: Final = (LIBRDKAFKA, KAFKA_PYTHON, JAVA_3)


@dataclass(eq=False)
class Batch:
    """Called with what became of it."""

    producer: Producer
    place: Place
    values: list[str]
    keys: list[str | None]
    starts: int
    """How often the broker had been started when the batch was first sent."""
    sequence: int = -1
    failure: KafkaError | None = None

    def __call__(self, outcome: Delivery | KafkaError) -> None:
        if isinstance(outcome, KafkaError):
            self.failure = outcome
        else:
            self.producer.acknowledged()


class Producer(Actor):
    """What all producers share: an identity, sequences, and sending batches until they are acknowledged."""

    produce_version = 12
    transactional_id: str | None = None

    def __init__(self, history: History, name: str) -> None:
        super().__init__(history, name)
        self.identity = Identity(-1, -1)
        self.instance = 0
        self._streams: dict[Place, BatchSequence] = {}
        self._count = 0
        self._is_fresh = True
        """Nothing was done with this identity yet."""

    def adopt(self, identity: Identity) -> None:
        """A new identity starts its sequences at 0."""
        if identity != self.identity:
            self.identity = identity
            self._streams.clear()

    def compose(
        self, place: Place, values: Sequence[str], transaction: Transaction | None, *, hidden: bool = False
    ) -> Batch:
        """A batch, known to the model from now on. In a table, some records delete a key."""
        is_table = place in self.model.removals.tables
        names = [value + wire.TOMBSTONE_MARK if is_table and self.chance(200) else value for value in values]
        keys = [self.rng.choice(TABLE_KEYS) if is_table else None for _ in names]
        for value, key in zip(names, keys, strict=True):
            self._count += 1
            order = (self.instance, self._count)
            owner = self.transactional_id or self.name
            doomed = place in self.history.doomed
            self.model.sent(
                SentRecord(value, place, order, owner, transaction, False, None, hidden, doomed, key, self.now_ms())
            )
        return Batch(self, place, names, keys, self.history.station.starts)

    def _stream(self, place: Place) -> BatchSequence:
        stream = self._streams.get(place)
        if stream is None:
            stream = self._streams[place] = BatchSequence(
                TopicPartition(*place),
                _identity(self.identity),
                Backoff(BACKOFF_MS, BACKOFF_MAX_MS, self.rng),
                mode=Mode.GIVEN,
                transactional=self.transactional_id is not None,
            )
        return stream

    def enqueue(self, batch: Batch) -> BatchSequence:
        """Behind the others for its partition. Nobody writes to a topic that may be gone for long."""
        raw = wire.batch(batch.values, None, -1, transactional=False, timestamp_ms=self.now_ms(), keys=batch.keys)
        time_ms = UNKNOWN_TOPIC_MS if batch.place in self.history.doomed else FOR_EVER_MS
        stream = self._stream(batch.place)
        batch.sequence = stream.next_sequence
        stream.append(split_batches(raw)[0], Deadline(time_ms, self._now_s), batch)
        return stream

    def _now_s(self) -> float:
        return self.now_ms() / 1000

    def produce_call(self, row: Sequence[Pending]) -> Call:
        """One request with what is to be sent: at most one batch for each partition."""
        batches = [cast(Batch, pending.delivered) for pending in row]
        arrived, answered = self.model.produced({batch.place: batch.values for batch in batches})
        data = {batch.place: pending.data for batch, pending in zip(batches, row, strict=True)}
        return Call(
            ApiKey.PRODUCE,
            self.produce_version,
            wire.produce(data, self.transactional_id, self.history.topic_ids),
            arrived,
            lambda response: answered(wire.produce_answers(response, self.history.topic_ids)),
            may_haunt=self.history.plan.verification,
        )

    def note_setback(self, text: str) -> None:
        self.trace(text)
        self.history.setbacks.append(f"{self.name}: {text}")

    def check_known(self, codes: set[int]) -> None:
        """Before a producer gives up because the broker does not know it."""

    def send_all(self, batches: Sequence[Batch]) -> Script[None]:
        """Until all are acknowledged. Raises what ends the transaction or the producer."""
        streams = list({batch.place: self.enqueue(batch) for batch in batches}.values())
        while True:
            needs = [stream.advance(self._now_s()) for stream in streams]
            for stream in streams:
                if stream.broken is not None:
                    self._give_up_on(stream.broken, batches)
            taken = [stream.take() for stream, need in zip(streams, needs, strict=True) if need is Need.LEADER]
            if taken:
                yield from self._send_rows(taken)
            elif Need.TIME in needs:
                resume_s = min(stream.resume_at_s for stream in streams if stream.resume_at_s > self._now_s())
                yield max(1, math.ceil((resume_s - self._now_s()) * 1000))
            else:
                return

    def _send_rows(self, taken: list[list[Pending]]) -> Script[None]:
        rows = [[pending for pending in row if pending is not None] for row in zip_longest(*taken)]
        calls = [self.produce_call(row) for row in rows]
        answers = yield calls
        if LOST in answers and self.transactional_id is not None and self.chance(self.history.plan.impatience):
            self._leave_behind([call for call, answer in zip(calls, answers, strict=True) if answer is LOST])
            raise MustAbort("lost")
        for row, answer in zip(rows, answers, strict=True):
            found = {} if answer is LOST else wire.produce_answers(answer, self.history.topic_ids)
            for pending in row:
                place = cast(Batch, pending.delivered).place
                self._stream(place).settle(pending, found[place] if found else ConnectionLost("lost"))

    def acknowledged(self) -> None:
        self._is_fresh = False

    def _give_up_on(self, failure: KafkaError, batches: Sequence[Batch]) -> None:
        """What the product makes of the failure decides whether the transaction or the producer has ended."""
        code = int(failure.code)
        refused = next(batch for batch in batches if batch.failure is failure)
        if code == OUT_OF_ORDER:
            if not self._may_be_out_of_order(refused):
                self.model.violated(
                    "no-duplicates",
                    f"{self.name}: {refused.values}, the first not acknowledged, is out of order in {refused.place}",
                )
            raise MustAbort(code)
        if not isinstance(produce_error(failure), AbortableError):
            self.check_known({code})
            self.note_setback(f"{code} for {refused.values}")
            raise Fenced
        self.note_setback(f"{code} for {refused.values}")
        raise MustAbort(code)

    def _leave_behind(self, calls: list[Call]) -> None:
        """What the producer does not wait for any longer may arrive all the same, while it aborts and goes on."""
        self.trace("gives up on what is under way")
        for call in calls:
            if call.may_haunt:
                self.history.network.send_ghost(call, 600)

    def _may_be_out_of_order(self, batch: Batch) -> bool:
        """Weaknesses of the protocol, in Kafka as here, that turn down the first unacknowledged batch.

        A snapshot has room for the last batch of a producer only, so after a restart the repetition of one that was
        sent before that cannot be told from a gap. A producer that a partition does not know may start anywhere, so
        when its first batch fails or is overtaken, another takes its place. And before TV2 a late repetition of an
        old batch makes the partition wait for that one to be verified, until the transaction has ended.
        """
        restarted = batch.starts != self.history.station.starts
        plan = self.history.plan
        was_first = batch.sequence == 0 and plan.disk_trouble + plan.weather.haunt > 0
        haunted = self.produce_version < JAVA_4.produce and (plan.weather.haunt > 0 or plan.impatience > 0)
        return restarted or was_first or (haunted and self.transactional_id is not None)


class IdempotentProducer(Producer):
    """No transactions: every acknowledged record exactly once, in order."""

    def script(self) -> Script[None]:
        def init() -> Call:
            return Call(
                ApiKey.INIT_PRODUCER_ID,
                4,
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000),
                on_answered=lambda response: (
                    self.model.given_identity(
                        None,
                        Identity(response.producer_id, response.producer_epoch),
                        is_new=True,
                        holder=self._holder(),
                    )
                    if response.error_code == 0
                    else None
                ),
            )

        answer = yield from self.retry(init, lambda answer: {answer.error_code}, RETRIABLE)
        self.adopt(Identity(answer.producer_id, answer.producer_epoch))
        self.produce_version = self.rng.choice((7, 9, 10, 12, 13))
        for number in range(self.history.plan.rounds * 2):
            if not self.history.in_trouble:
                return
            batches: list[Batch] = []
            for _ in range(self.rng.randrange(1, 6)):
                place = self.rng.choice(self.history.places)
                values = [f"{self.name}:{number}.{len(batches)}.{i}" for i in range(self.rng.randrange(1, 3))]
                batches.append(self.compose(place, values, None))
            try:
                yield from self.send_all(batches)
            except MustAbort as error:
                if error.args != (OUT_OF_ORDER,):
                    self.model.violated("exactly-once", f"{self.name}: an idempotent batch was refused: {error!r}")
                return
            except Fenced:
                self.model.violated("exactly-once", f"{self.name}: an idempotent batch was refused")
                return
            yield self.rng.randrange(400)

    def _holder(self) -> str:
        # Every answer hands out another id, also the one that is lost.
        self._count += 1
        return f"{self.name}#{self._count}"


class TxnClient(Producer):
    """The transactional calls of one instance of a producer, made by the product's own client."""

    def __init__(self, history: History, name: str, transactional_id: str, dialect: Dialect, timeout_ms: int) -> None:
        super().__init__(history, name)
        self.transactional_id: str = transactional_id
        self.dialect = dialect
        self.produce_version = dialect.produce
        self.txn_timeout_ms = timeout_ms
        self.transaction: Transaction | None = None
        network = ActorNetwork(self, dialect.versions, 2 if dialect.bumps_epochs else 1, self.call_of)
        self.transactions = AsyncTransactionClient(network.cluster())
        self._added: set[Place] = set()
        self._is_begun = False
        self._numbers = 0

    def call_of(self, key: ApiKey, version: int, message: Any) -> Call:
        """With the model's witness. A repetition that arrives late must do no harm where the protocol prevents it."""
        call = Call(key, version, message)
        if isinstance(message, InitProducerIdRequest):
            call.on_answered = lambda response: self._witness_identity(message, response)
            call.may_haunt = True
        elif isinstance(message, EndTxnRequest):
            if self.transaction is not None:
                ending = self.model.ending(self.transaction, message.committed, self.name)
                call.on_delivered, call.on_answered = ending
            call.may_haunt = self.dialect.bumps_epochs
        elif isinstance(message, AddPartitionsToTxnRequest):
            call.may_haunt = self.history.plan.verification
        elif isinstance(message, AddOffsetsToTxnRequest):
            call.may_haunt = True
        elif isinstance(message, TxnOffsetCommitRequest):
            call.may_haunt = self.dialect.bumps_epochs
        elif isinstance(message, OffsetFetchRequest):
            call.on_answered = lambda response: self._witness_offsets(message, response)
        return call

    def converse(self, what: str, coroutine: Coroutine[Any, Any, T]) -> Script[T]:
        """A call of the client. Raises MustAbort or Fenced for what ends the transaction or the producer."""
        try:
            result = yield from play(coroutine)
        except (AbortableError, TimedOut) as error:
            self.note_setback(f"{what}: {int(error.code)}")
            raise MustAbort(int(error.code)) from error
        except FatalError as error:
            self.check_known({int(error.code)})
            self.note_setback(f"{what}: {int(error.code)}")
            raise Fenced from error
        self._is_fresh = False
        return result

    # -- identity

    def initialise(self, expected: Identity | None = None, **options: bool) -> Script[None]:
        """Without `expected` as a new instance that fences its predecessors; with it to get a new epoch (KIP-360)."""
        held = None if expected is None else _identity(expected)
        init = self.transactions.init(self.transactional_id, self.txn_timeout_ms, held, **options)
        yield from self.converse("InitProducerId", init)
        self.adopt(Identity(*self.transactions.identity))
        self._is_fresh = True
        self.history.note_dialect(self.identity, self.dialect.bumps_epochs)
        self.trace(f"is {self.identity.producer_id}/{self.identity.epoch} ({self.dialect.name})")

    def _witness_identity(self, request: InitProducerIdRequest, response: Any) -> None:
        if response.error_code == 0:
            identity = Identity(response.producer_id, response.producer_epoch)
            is_new = request.producer_id < 0
            self.model.given_identity(self.transactional_id, identity, is_new=is_new, holder=self.name)
            self.instance = self.model.next_grant()

    # -- one transaction

    def begin(self) -> Transaction:
        self._numbers += 1
        self._added.clear()
        self._is_begun = False
        self.transaction = self.model.begin(f"{self.name}/{self._numbers}", self.transactional_id)
        return self.transaction

    def write(self, batches: Sequence[Batch]) -> Script[None]:
        new = [batch.place for batch in batches if batch.place not in self._added]
        self._is_begun = True
        if new:
            doomed = any(place in self.history.doomed for place in new)
            deadline = self.transactions.cluster.deadline(UNKNOWN_TOPIC_MS) if doomed else None
            partitions = [TopicPartition(*place) for place in new]
            added = self.transactions.add_partitions(partitions, deadline=deadline)
            yield from self.converse("AddPartitionsToTxn", added)
            self._added.update(new)
        yield from self.send_all(batches)

    def commit_offsets(self, member: GroupMetadata, offsets: dict[Place, int]) -> Script[None]:
        transaction = self.transaction
        if transaction is None:
            raise RuntimeError("no transaction")
        for place, offset in offsets.items():
            transaction.offsets[member.group_id, place] = offset
        self._is_begun = True
        named = {TopicPartition(*place): offset for place, offset in offsets.items()}
        yield from self.converse("TxnOffsetCommit", self.transactions.commit_offsets(member, named))

    def fetch_offsets(self, group_id: str, places: Sequence[Place]) -> Script[dict[Place, int]]:
        """The committed offsets, once no transaction is about to change them (KIP-447); -1 where there is none."""
        partitions = [TopicPartition(*place) for place in places]
        found = yield from play(self.transactions.fetch_offsets(group_id, partitions))
        return {(p.topic, p.partition): found[p].offset if p in found else -1 for p in partitions}

    def _witness_offsets(self, request: OffsetFetchRequest, response: Any) -> None:
        for place, part in wire.offset_fetch_answers(response).items():
            if part.error_code == 0:
                self.model.read_offset(request.group_id, place, part.committed_offset)

    def check_known(self, codes: set[int]) -> None:
        """Nothing was begun under the newest identity of the id, so nothing can have taken it away."""
        is_newest = self.model.identities.get(self.transactional_id) == self.identity
        if UNKNOWN_MAPPING in codes and self._is_fresh and is_newest and not self._may_be_replaced:
            self.model.violated("identities-hold", f"{self.name}: {self.identity} was given to it and is unknown")

    @property
    def _may_be_replaced(self) -> bool:
        plan = self.history.plan
        return bool(
            plan.contenders > 1 or plan.fencing or plan.client_kills or plan.weather.haunt or plan.id_expiration
        )

    def end(self, commit: bool) -> Script[None]:
        """Raises Fenced when the broker has turned it down. A commit that was refused is aborted by the client."""
        transaction = self.transaction
        if transaction is None or not self._is_begun:
            self.transaction = None
            return
        verb = "commit" if commit else "abort"
        try:
            yield from play(self.transactions.end(commit))
        except TransactionError as error:
            self.trace(f"{verb} of {transaction.name}: {int(error.code)}")
            self.note_setback(f"{verb}: {int(error.code)}")
            transaction.refused_to_owner = commit and not self._may_be_replaced
            raise Fenced from error
        finally:
            self.transaction = None
        self.trace(f"{verb} of {transaction.name}: 0")
        if self.dialect.bumps_epochs:
            self.adopt(Identity(*self.transactions.identity))
            self._is_fresh = True
            self.history.note_dialect(self.identity, True)

    def give_up(self) -> Script[None]:
        """Aborts after an error. What is under way must not join a later transaction: old clients get a new epoch."""
        old = self.identity
        try:
            yield from self.end(commit=False)
        except Fenced:
            if self.dialect.bumps_epochs or not self.chance(500):
                raise
            # A time-out may have taken the transaction away; the way back of semantics.md, section 7.
        if not self.dialect.bumps_epochs:
            yield from self.initialise(expected=old)


class TxnProducer(TxnClient):
    """Runs transactions over random partitions; with a group, each of them also moves the group's offset.

    The outputs of a producer with a group are numbered by their inputs, so in the end every input below the group's
    committed offset must have led to one output: exactly once, over all instances of the producer.
    """

    group_id: str | None = None

    def script(self) -> Script[None]:
        try:
            yield from self.initialise()
            position = (yield from self._resume_at()) if self.group_id is not None else 0
            while self.history.wants_more(self.transactional_id):
                position = yield from self._run_one(position)
                yield self.rng.randrange(200)
        except Fenced:
            self.trace("is fenced")

    def _run_one(self, position: int) -> Script[int]:
        transaction = self.begin()
        try:
            following = yield from self._fill(transaction, position)
        except MustAbort:
            yield from self.give_up()
            return position
        if self.chance(self.history.plan.pauses):
            yield self.rng.randrange(2 * self.txn_timeout_ms)
        if self.chance(250):
            yield from self.end(commit=False)
            return position
        if self.history.plan.client_kills and self.chance(60):
            self.history.clock.call_later_ms(self.rng.randrange(12), self.kill)
        yield from self.end(commit=True)
        return following

    def _fill(self, transaction: Transaction, position: int) -> Script[int]:
        for _ in range(self.rng.randrange(1, 3)):
            batches: list[Batch] = []
            for _ in range(self.rng.randrange(1, 5)):
                place = self.history.somewhere(self.rng)
                values = []
                for _ in range(self.rng.randrange(1, 3)):
                    values.append(f"{transaction.name}:{position}")
                    position += 1
                batches.append(self.compose(place, values, transaction))
            yield from self.write(batches)
            if self.chance(200):
                yield self.rng.randrange(300)
        if self.group_id is not None:
            yield from self.commit_offsets(GroupMetadata(self.group_id), {self.history.input_places[0]: position})
        return position

    def _resume_at(self) -> Script[int]:
        place = self.history.input_places[0]
        return max(0, (yield from self.fetch_offsets(self.group_id or "", [place]))[place])


def _identity(identity: Identity) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(identity.producer_id), ProducerEpoch(identity.epoch))
