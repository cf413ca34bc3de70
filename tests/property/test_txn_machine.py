"""Random interleavings of producers, time-outs, failing appends and crashes against a small model of the coordinator.

The model knows, per transactional id: the identities that were handed out, the partitions that were acknowledged as
part of the open transaction, and what was decided. After every step:

- no epoch is 32767 when handed out, and none goes back;
- only the holder of the newest identity can change anything, and nobody else is told of a success, save the one whose
  transaction it was and who asks again;
- a transaction is open for its time-out at most, however often it changes, and is not added to once it is prepared;
- what was decided stays decided, over any number of crashes, and its markers go to every acknowledged partition;
- the log alone gives the same state;
and in the end nothing is left pending.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oncelog.coordinator.outcome import CoordinatorRecord, Replayed
from oncelog.coordinator.txn.config import TxnConfig
from oncelog.coordinator.txn.effects import SendMarkers
from oncelog.coordinator.txn.machine import TxnShard
from oncelog.coordinator.txn.metadata import TxnMetadata
from oncelog.coordinator.txn.outcome import TxnOutcome
from oncelog.coordinator.txn.records import encode_record
from oncelog.coordinator.txn.results import EndTxnResult, InitProducerIdResult, PartitionsResult
from oncelog.coordinator.txn.state import COMPLETED, PREPARED, TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import CoordinatorEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tests.unit.coordinator.txn.txn_harness import START_MS, as_recorded, metadata

IDS = ("a", "b")
PARTITIONS = tuple(TopicPartition("t", number) for number in range(3))
CLIENT_VERSIONS = (TransactionVersion.TV0, TransactionVersion.TV2)
FAILURES = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.MESSAGE_TOO_LARGE)
TIMEOUT_MS = 1_000
EXPIRY_MS = 50_000

ids = st.sampled_from(IDS)
versions = st.sampled_from(CLIENT_VERSIONS)
which = st.integers(0, 3)
ages = st.sampled_from([0, 0, 0, 0, 1, 2, 3])
FROM_THE_FUTURE = -1
whoever = st.sampled_from([0, 0, 0, 0, 1, 2, 3, FROM_THE_FUTURE])
seldom = st.integers(0, 5).map(lambda number: number == 0)


@dataclass
class Known:
    """What the model knows of one id."""

    handed_out: list[ProducerIdAndEpoch] = field(default_factory=list)
    acknowledged: set[TopicPartition] = field(default_factory=set)
    decision: bool | None = None
    sent: SendMarkers | None = None
    without_marker: set[TopicPartition] = field(default_factory=set)
    is_complete: bool = False
    is_kept: bool = False
    """A client has come back to settle the open transaction, and was told of it."""
    open_since_ms: int | None = None
    ended: ProducerIdAndEpoch | None = None
    """Whose transaction was the last to be decided; None if that is not known since a crash."""


@dataclass
class InFlight:
    outcome: TxnOutcome[Any]
    presented: ProducerIdAndEpoch | None = None


class Coordinator(RuleBasedStateMachine):
    @initialize(
        version=st.sampled_from(TransactionVersion),
        epoch=st.sampled_from([0, 32_762, 32_764, 32_765, 32_766]),
    )
    def start(self, version: TransactionVersion, epoch: int) -> None:
        self.config = TxnConfig(version, 900_000, EXPIRY_MS, two_phase_commit_enable=True)
        self.now_ms = START_MS
        self.next_producer_id = 1_000
        self.coordinator_epoch = 0
        self.log: list[CoordinatorRecord] = []
        self.in_flight: list[InFlight] = []
        self.sending: list[SendMarkers] = []
        self.unknown_fate: set[str] = set()
        self.known = {transactional_id: Known() for transactional_id in IDS}
        value = metadata(TxnState.EMPTY, epoch=epoch, producer_id=7, timeout_ms=TIMEOUT_MS)
        self.log.append(encode_record("a", value, version))
        self.known["a"].handed_out.append(value.client_identity)
        self.load()

    # What clients and the coordinator's own scans do

    @rule(transactional_id=ids, expected=st.none() | ages, keep=st.booleans())
    def init_producer_id(self, transactional_id: str, expected: int | None, keep: bool) -> None:
        identity = None if expected is None else self.identity(transactional_id, expected)
        outcome = self.shard.init_producer_id(transactional_id, TIMEOUT_MS, identity, False, keep, self.now_ms)
        self.decided(outcome)

    @rule(
        transactional_id=ids,
        who=whoever,
        version=versions,
        partitions=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=2),
    )
    def add_partitions(
        self, transactional_id: str, who: int, version: TransactionVersion, partitions: list[TopicPartition]
    ) -> None:
        identity = self.identity(transactional_id, who)
        outcome = self.shard.add_partitions(transactional_id, identity, partitions, version, self.now_ms)
        if outcome.response.error is ErrorCode.NONE:
            assert not self.known[transactional_id].is_kept, "a prepared transaction was added to"
        self.decided(outcome, identity)

    @rule(transactional_id=ids, who=whoever, version=versions, commit=st.booleans())
    def end_txn(self, transactional_id: str, who: int, version: TransactionVersion, commit: bool) -> None:
        identity = self.identity(transactional_id, who)
        outcome = self.shard.end_txn(transactional_id, identity, commit, version, self.now_ms)
        known = self.known[transactional_id]
        # Before TV2 a log does not say which protocol ended a transaction, so that a retry cannot be told from that.
        is_known = known.ended is not None and self.config.transaction_version.bumps_epochs
        if outcome.response.error is ErrorCode.NONE and not outcome.records and is_known:
            assert identity in (known.handed_out[-1], known.ended), (
                "somebody was told of the end of another's transaction"
            )
        self.decided(outcome, identity)

    @rule(
        transactional_id=ids,
        version=versions,
        commit=st.booleans(),
        keep=st.booleans(),
        steps=st.lists(st.sampled_from(["init", "add", "end"]), min_size=2, max_size=6),
    )
    def a_producer_goes_on(
        self, transactional_id: str, version: TransactionVersion, commit: bool, keep: bool, steps: list[str]
    ) -> None:
        """Without being disturbed, so that the interesting states are reached often."""
        for step in steps:
            if step == "init":
                self.init_producer_id(transactional_id, None, keep)
            elif step == "add":
                self.add_partitions(transactional_id, 0, version, [PARTITIONS[0]])
            else:
                self.end_txn(transactional_id, 0, version, commit)
            if self.in_flight:
                self.append_is_committed(-1)

    @rule(transactional_id=ids, version=versions)
    def a_producer_dawdles(self, transactional_id: str, version: TransactionVersion) -> None:
        """And adds another partition whenever its time is nearly up."""
        for partition in PARTITIONS:
            self.add_partitions(transactional_id, 0, version, [partition])
            if self.in_flight:
                self.append_is_committed(-1)
            self.time_passes(TIMEOUT_MS - 1)

    @rule(transactional_id=ids, version=versions, commit=st.booleans())
    def a_replaced_producer_asks_for_the_end(
        self, transactional_id: str, version: TransactionVersion, commit: bool
    ) -> None:
        """As if it were its own, when its successor has ended one."""
        self.a_producer_goes_on(transactional_id, version, commit, False, ["init", "init", "add", "end"])
        self.all_markers_are_written()
        while self.in_flight:
            self.append_is_committed(-1)
        self.end_txn(transactional_id, 1, TransactionVersion.TV2, commit)

    @rule(elapsed_ms=st.sampled_from([1, TIMEOUT_MS, TIMEOUT_MS + 1]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        for outcome in self.shard.abort_timed_out(self.now_ms):
            self.decided(outcome)
        for transactional_id, known in self.known.items():
            if known.open_since_ms is not None and self.now_ms - known.open_since_ms > TIMEOUT_MS:
                entry = self.shard._entries[transactional_id]
                assert entry.pending_state is not None, "a transaction is open for longer than it may be"

    @rule(really=seldom)
    def ids_expire(self, really: bool) -> None:
        self.now_ms += EXPIRY_MS if really else 0
        for outcome in self.shard.expire_ids(self.now_ms):
            self.decided(outcome)

    @rule(number=which, share=st.sets(st.sampled_from(PARTITIONS)))
    @precondition(lambda self: self.sending)
    def markers_are_written(self, number: int, share: set[TopicPartition]) -> None:
        sent = self.sending[number % len(self.sending)]
        self.decided(self.shard.markers_acknowledged(sent, self.report(sent, share), self.now_ms))

    @rule()
    def all_markers_are_written(self) -> None:
        for sent in list(self.sending):
            self.decided(self.shard.markers_acknowledged(sent, self.report(sent, sent.partitions), self.now_ms))

    # What becomes of records

    @rule(number=which)
    @precondition(lambda self: self.in_flight)
    def append_is_committed(self, number: int) -> None:
        self.commit(self.in_flight.pop(number % len(self.in_flight)))

    @rule(number=which, error=st.sampled_from(FAILURES), stays=st.booleans())
    @precondition(lambda self: self.in_flight)
    def append_fails(self, number: int, error: ErrorCode, stays: bool) -> None:
        """Told as failed. It may be in the log all the same, and be found there by the next load."""
        failed = self.in_flight.pop(number % len(self.in_flight)).outcome
        assert failed.transactional_id is not None
        if stays:
            self.log += failed.records
            self.unknown_fate.add(failed.transactional_id)
        self.shard.append_failed(failed, error, "", self.now_ms)

    @rule(survives=st.lists(st.booleans(), min_size=4, max_size=4))
    @precondition(lambda self: self.in_flight or self.sending)
    def crash(self, survives: list[bool]) -> None:
        """Of what is in flight, some made it into the log although no answer was given."""
        for flight, made_it in zip(self.in_flight, survives, strict=False):
            if made_it:
                self.log += flight.outcome.records
        self.in_flight.clear()
        self.load()

    @invariant()
    def the_log_alone_gives_what_lives(self) -> None:
        """Also while transactions are open, kept or being completed. Not where a failed append may be in the log."""
        loaded = TxnShard(0, self.config, self.allocate)
        for record in self.log:
            loaded.replay(record, offset=0, now_ms=self.now_ms)
        found, living = self.durable(loaded), self.durable(self.shard)
        for transactional_id in set(IDS) - self.unknown_fate:
            assert found.get(transactional_id) == living.get(transactional_id), "the log says something else"

    # The model

    def identity(self, transactional_id: str, age: int) -> ProducerIdAndEpoch:
        """The newest identity at age 0, its predecessors after it; a stranger's when there are none."""
        handed_out = self.known[transactional_id].handed_out
        if age == FROM_THE_FUTURE and handed_out:
            producer_id, epoch = handed_out[-1]
            return ProducerIdAndEpoch(producer_id, epoch + 10)  # type: ignore[arg-type]
        return handed_out[-1 - age] if 0 <= age < len(handed_out) else ProducerIdAndEpoch(ProducerId(5), 3)  # type: ignore[arg-type]

    def report(self, sent: SendMarkers, written: Collection[TopicPartition]) -> Collection[TopicPartition]:
        known = self.known[sent.transactional_id]
        if known.sent is sent:
            known.without_marker -= set(written)
        return written

    def decided(self, outcome: TxnOutcome[Any], presented: ProducerIdAndEpoch | None = None) -> None:
        if outcome.records:
            self.in_flight.append(InFlight(outcome, presented))
            assert not self.shard.is_settled(outcome.transactional_id or "")
        if outcome.response.error is ErrorCode.CONCURRENT_TRANSACTIONS:
            assert outcome.wait_for is not None
        if not outcome.records:
            self.answered(outcome, outcome.response)

    def commit(self, flight: InFlight) -> None:
        outcome = flight.outcome
        transactional_id = outcome.transactional_id
        assert transactional_id is not None
        before = self.shard._entries[transactional_id].metadata
        if flight.presented is not None:
            assert flight.presented == self.known[transactional_id].handed_out[-1], (
                "only the newest may change anything"
            )
        self.log += outcome.records
        self.unknown_fate.discard(transactional_id)
        effects = [effect for record in outcome.records for effect in self.replay(record).effects]
        after = self.shard._entries.get(transactional_id)
        if after is None:
            self.known[transactional_id] = Known()
        else:
            if after.metadata.producer_id == before.producer_id and not before.keeps_prepared:
                assert after.metadata.producer_epoch >= before.producer_epoch
            if after.metadata.state in PREPARED:
                self.known[transactional_id].ended = before.client_identity
            self.applied(transactional_id, after.metadata.state)
            self.answered(outcome, outcome.response)
            if isinstance(outcome.response, EndTxnResult):
                assert outcome.response.identity != flight.presented, "the end of a TV2 transaction must bump"
        self.carry_out(effects)

    def replay(self, record: CoordinatorRecord) -> Replayed[SendMarkers]:
        return self.shard.replay(record, offset=0, now_ms=self.now_ms)

    def applied(self, transactional_id: str, state: TxnState) -> None:
        known = self.known[transactional_id]
        is_open = state is TxnState.ONGOING
        known.open_since_ms = (known.open_since_ms or self.now_ms) if is_open else None
        known.is_kept = known.is_kept and is_open
        if state in PREPARED:
            commit = state is TxnState.PREPARE_COMMIT
            assert known.is_complete or known.decision in (None, commit), "a decision was turned round"
            known.decision, known.is_complete = commit, False
        elif state in COMPLETED:
            assert known.decision is (state is TxnState.COMPLETE_COMMIT), "it ended otherwise than decided"
            assert not known.without_marker, "it ended before its markers were written"
            known.is_complete = True
            known.acknowledged.clear()
        else:
            assert known.is_complete or known.decision is None, "a decided transaction was opened again"
            known.decision, known.is_complete = None, False
            if state is TxnState.EMPTY:
                known.acknowledged.clear()

    def answered(self, outcome: TxnOutcome[Any], response: Any) -> None:
        if response.error is not ErrorCode.NONE:
            return
        known = self.known.get(outcome.transactional_id or "")
        if known is None:
            return
        if isinstance(response, PartitionsResult):
            known.acknowledged |= set(response.partitions)
        elif isinstance(response, InitProducerIdResult | EndTxnResult) and response.identity.producer_id >= 0:
            assert 0 <= response.identity.epoch < 32_767
            known.is_kept = isinstance(response, InitProducerIdResult) and response.ongoing.producer_id >= 0
            self.hand_out(known, response.identity)

    def hand_out(self, known: Known, identity: ProducerIdAndEpoch) -> None:
        if known.handed_out and known.handed_out[-1] == identity:
            return
        for earlier in known.handed_out:
            assert earlier.producer_id != identity.producer_id or earlier.epoch < identity.epoch, "an epoch went back"
        known.handed_out.append(identity)

    def carry_out(self, effects: list[SendMarkers]) -> None:
        for sent in effects:
            known = self.known[sent.transactional_id]
            assert sent.commit is known.decision
            assert sent.partitions >= known.acknowledged, "a partition would be left without its marker"
            assert sent.coordinator_epoch == self.coordinator_epoch
            known.sent, known.without_marker = sent, set(sent.partitions)
            self.sending.append(sent)
            if not sent.partitions:
                self.decided(self.shard.markers_acknowledged(sent, (), self.now_ms))

    def load(self) -> None:
        self.coordinator_epoch += 1
        self.shard = TxnShard(0, self.config, self.allocate)
        self.sending.clear()
        self.unknown_fate.clear()
        for record in self.log:
            assert self.replay(record).warning is None
        for transactional_id, known in self.known.items():
            entry = self.shard._entries.get(transactional_id)
            if entry is None:
                self.known[transactional_id] = Known()
                continue
            known.ended = None
            self.applied(transactional_id, entry.metadata.state)
            self.handed_out_before_the_crash(known, entry.metadata.client_identity)
        self.carry_out(self.shard.on_loaded(CoordinatorEpoch(self.coordinator_epoch), self.now_ms))

    def handed_out_before_the_crash(self, known: Known, current: ProducerIdAndEpoch) -> None:
        """A record whose answer was lost moved the id on: the newest identity is one that no client has."""
        newest = known.handed_out[-1] if known.handed_out else None
        if newest != current and current.epoch < 32_767 and current not in known.handed_out:
            is_newer = all(
                earlier.producer_id != current.producer_id or earlier.epoch < current.epoch
                for earlier in known.handed_out
            )
            if is_newer:
                known.handed_out.append(current)

    def allocate(self) -> ProducerId:
        self.next_producer_id += 1
        return ProducerId(self.next_producer_id)

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        self.drain()
        assert all(self.shard.is_settled(transactional_id) for transactional_id in IDS), "somebody waits for ever"
        self.the_log_alone_gives_what_lives()
        self.load()
        self.drain()
        for transactional_id in IDS:
            self.init_producer_id_until_it_works(transactional_id)

    def durable(self, shard: TxnShard) -> dict[str, TxnMetadata]:
        """All but ids whose first record is in flight."""
        version, entries = self.config.transaction_version, shard._entries.items()
        return {name: as_recorded(e.metadata, version) for name, e in entries if e.metadata.producer_epoch >= 0}

    def drain(self) -> None:
        while self.in_flight or self.sending:
            while self.in_flight:
                self.commit(self.in_flight.pop(0))
            if self.sending:
                sent = self.sending.pop(0)
                self.decided(self.shard.markers_acknowledged(sent, self.report(sent, sent.partitions), self.now_ms))

    def init_producer_id_until_it_works(self, transactional_id: str) -> None:
        for _ in range(2):
            outcome = self.shard.init_producer_id(transactional_id, TIMEOUT_MS, None, False, False, self.now_ms)
            self.decided(outcome)
            self.drain()
            if outcome.response.error is ErrorCode.NONE:
                return
        raise AssertionError(f"{transactional_id} cannot be initialised: {outcome.response.reason}")


Coordinator.TestCase.settings = settings(
    max_examples=300, stateful_step_count=50, suppress_health_check=list(HealthCheck)
)
TestCoordinator = Coordinator.TestCase
