"""All of one partition of `__transaction_state`: the transaction coordinator as a pure state machine.

The shell reads the partition's log into `replay`, calls `on_loaded`, and from then on runs the operations. See
`coordinator.outcome` for what it does with what they return, `state` for the states and their transitions, `epochs` for
how epochs move, and one module per request for its rules. What is here: finding the id, marking it pending, encoding
the record, and applying it when it is committed.

`replay` is the only place that changes what the log says about an id. Beside it live, in memory only: the pending
state, the last epoch of a client that asked for a bump, and the reasons why producers were fenced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from oncelog.coordinator.failed_append import error_for_failed_append
from oncelog.coordinator.outcome import CoordinatorRecord, Outcome, Replayed, Reply
from oncelog.coordinator.txn import (
    completeness,
    end_txn,
    epochs,
    fencing,
    init_producer_id,
    listing,
    markers,
    partitions,
    records,
    recovery,
)
from oncelog.coordinator.txn.config import TxnConfig
from oncelog.coordinator.txn.decision import Transition
from oncelog.coordinator.txn.effects import SendMarkers
from oncelog.coordinator.txn.end_txn import EndArguments
from oncelog.coordinator.txn.epochs import AllocateProducerId
from oncelog.coordinator.txn.init_producer_id import InitArguments
from oncelog.coordinator.txn.metadata import PendingTransition, TxnEntry, TxnMetadata
from oncelog.coordinator.txn.outcome import TxnOutcome
from oncelog.coordinator.txn.records import DecodedRecord, UnknownRecord
from oncelog.coordinator.txn.recovery import OpenTransaction, Recovered
from oncelog.coordinator.txn.results import (
    EndTxnResult,
    IdResult,
    InitProducerIdResult,
    PartitionsResult,
    Result,
)
from oncelog.coordinator.txn.state import COMPLETED, NAME_OF, PREPARED, TxnState, check_path
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.clock import plausible_ms
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import (
    NO_COORDINATOR_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSACTION_STATE_TOPIC,
    CoordinatorEpoch,
    ProducerIdAndEpoch,
    TopicPartition,
)
from oncelog.core.invariant import InvariantError, invariant
from oncelog.protocol.messages.describe_transactions import TransactionState as DescribedTransaction

R = TypeVar("R", bound=Result)


class TxnShard:
    def __init__(self, partition: int, config: TxnConfig, allocate_producer_id: AllocateProducerId) -> None:
        self.partition = partition
        self.config = config
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self._allocate_producer_id = allocate_producer_id
        self.is_loaded = False
        self.refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._entries: dict[str, TxnEntry] = {}
        self.id_bytes = 0
        """Of all ids together."""
        self.enlisted = 0
        """Partitions of the transactions of all ids together."""
        self.check_room: Callable[[int], None] = _admit_all
        """Called before so many partitions more belong to a transaction. Raises what refuses them."""
        self._ongoing: set[str] = set()

    # Loading and applying

    @property
    def highest_producer_id(self) -> int:
        """The highest producer id that any transactional id has, had last or will have next; -1 if there is none."""
        return max((entry.metadata.highest_producer_id for entry in self._entries.values()), default=-1)

    def on_loaded(self, coordinator_epoch: CoordinatorEpoch, now_ms: int) -> list[SendMarkers]:
        """The whole log was replayed: begin to serve. Decided transactions are carried on, under the new epoch."""
        invariant(not self.is_loaded, "%s-%s was loaded twice", TRANSACTION_STATE_TOPIC, self.partition)
        self.is_loaded = True
        self.coordinator_epoch = coordinator_epoch
        for entry in self._entries.values():
            if entry.metadata.start_ms > now_ms:
                # The clock was ahead then, or is behind now: the time that is left must not grow with the difference.
                entry.metadata = replace(entry.metadata, start_ms=now_ms)
        return [
            markers.begin(entry, coordinator_epoch)
            for entry in self._entries.values()
            if entry.metadata.state in PREPARED
        ]

    def unload(self) -> Outcome:
        self.is_loaded = False
        self.refusal = ErrorCode.NOT_COORDINATOR
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self._entries.clear()
        self._ongoing.clear()
        self.id_bytes = self.enlisted = 0
        return Outcome()

    def recover(
        self,
        producer_epochs: Mapping[int, int],
        open_transactions: Iterable[OpenTransaction],
        doubtful_below_offset: int,
    ) -> Recovered:
        """Between the replay and `on_loaded`: what partitions have seen is compared with the log."""
        return recovery.recover(self._entries.values(), producer_epochs, open_transactions, doubtful_below_offset)

    def replay(
        self,
        record: CoordinatorRecord,
        *,
        offset: int,
        now_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        written_ms: int = NO_TIMESTAMP,
    ) -> Replayed[SendMarkers]:
        """Apply a committed record, at load or just written. Nothing else changes what is durable."""
        decoded = self._read(record)
        if isinstance(decoded, UnknownRecord):
            return Replayed(warning=decoded.warning)
        transactional_id, metadata = decoded.transactional_id, decoded.metadata
        if metadata is None:
            self._remove(transactional_id)
            return Replayed()
        updated_ms = plausible_ms(metadata.last_update_ms, written_ms)
        if updated_ms != metadata.last_update_ms:
            metadata = replace(metadata, last_update_ms=updated_ms)
        entry = self._entries.get(transactional_id) or TxnEntry(transactional_id, metadata)
        self._finish_transition(entry)
        entry.record_offset, entry.written_ms = offset, written_ms
        if metadata.state is TxnState.EMPTY:
            entry.is_doubtful = False
        self._install(entry, metadata)
        if not self.is_loaded or metadata.state not in PREPARED:
            return Replayed()
        entry.has_failed_epoch_fence = False
        return Replayed(effects=(markers.begin(entry, self.coordinator_epoch),))

    def replay_marker(self, producer_id: int, *, commit: bool) -> Replayed[SendMarkers]:
        return Replayed(warning="a transaction marker, which is ignored")

    def append_failed(self, outcome: Outcome, error: ErrorCode, reason: str, now_ms: int) -> Outcome:
        code = error_for_failed_append(error)
        if isinstance(outcome, TxnOutcome) and outcome.transactional_id is not None:
            self._withdraw(outcome.transactional_id)
        return Outcome(
            replies=[Reply(reply.reply_to, reply.response.with_error(code, reason)) for reply in outcome.replies]
        )

    def _withdraw(self, transactional_id: str) -> None:
        """The record in flight of this id did not become durable."""
        entry = self._entries.get(transactional_id)
        if entry is None or entry.in_flight is None:
            return
        in_flight, entry.in_flight = entry.in_flight, None
        if in_flight.target is not None and in_flight.target.state in COMPLETED:
            # The outcome is decided and the markers are written: the id stays pending, and `markers_acknowledged`
            # hands the record out once more.
            return
        entry.pending_state = None
        if in_flight.is_epoch_fence and not self.config.transaction_version.bumps_epochs:
            entry.has_failed_epoch_fence = True
            if in_flight.fence is not None:
                entry.remember(in_flight.fence)
        if not entry.metadata.exists:
            self._forget(transactional_id)

    @property
    def id_count(self) -> int:
        return len(self._entries)

    def _keep(self, entry: TxnEntry) -> None:
        if entry.transactional_id not in self._entries:
            self.id_bytes += len(entry.transactional_id)
        self._entries[entry.transactional_id] = entry

    def _forget(self, transactional_id: str) -> None:
        entry = self._entries.pop(transactional_id, None)
        if entry is not None:
            self.id_bytes -= len(transactional_id)
            self.enlisted -= len(entry.metadata.partitions)

    def knows(self, transactional_id: str) -> bool:
        return transactional_id in self._entries

    def is_settled(self, transactional_id: str) -> bool:
        """Whether a request that met CONCURRENT_TRANSACTIONS would get another answer now."""
        entry = self._entries.get(transactional_id)
        return entry is None or entry.is_settled

    # Requests

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        enable_2pc: bool,
        keep_prepared: bool,
        now_ms: int,
    ) -> TxnOutcome[InitProducerIdResult]:
        request = InitArguments(timeout_ms, expected, enable_2pc, keep_prepared)
        try:
            init_producer_id.check_request(transactional_id, request, self.config)
            entry = self._find(transactional_id)
            if entry is None:
                producer_id = self._allocate_producer_id()
                entry = TxnEntry(transactional_id, epochs.created(producer_id, request.stored_timeout_ms, now_ms))
            decision = init_producer_id.decide(entry, request, self.config, self._allocate_producer_id, now_ms)
        except KafkaError as error:
            return self._refuse(InitProducerIdResult.failed, transactional_id, expected, error)
        return self._carry_out(entry, decision, expected)

    def add_partitions(
        self,
        transactional_id: str | None,
        presented: ProducerIdAndEpoch,
        added: Iterable[TopicPartition],
        client_version: TransactionVersion,
        now_ms: int,
    ) -> TxnOutcome[PartitionsResult]:
        wanted = frozenset(added)
        return self._decide(
            transactional_id,
            presented,
            lambda entry: self._add(entry, presented, wanted, client_version, now_ms),
            lambda code, reason: PartitionsResult.failed_for(wanted, code, reason),
        )

    def _add(
        self,
        entry: TxnEntry,
        presented: ProducerIdAndEpoch,
        wanted: frozenset[TopicPartition],
        client_version: TransactionVersion,
        now_ms: int,
    ) -> Transition[PartitionsResult] | PartitionsResult:
        decision = partitions.add(entry, presented, wanted, client_version, now_ms)
        if isinstance(decision, Transition):
            self.check_room(len(decision.target.partitions) - len(entry.metadata.partitions))
        return decision

    def verify_partitions(
        self, transactional_id: str | None, presented: ProducerIdAndEpoch, verified: Iterable[TopicPartition]
    ) -> TxnOutcome[PartitionsResult]:
        wanted = frozenset(verified)
        return self._decide(
            transactional_id,
            presented,
            lambda entry: partitions.verify(entry, presented, wanted),
            lambda code, reason: PartitionsResult.failed_for(wanted, code, reason),
        )

    def end_txn(
        self,
        transactional_id: str | None,
        presented: ProducerIdAndEpoch,
        commit: bool,
        client_version: TransactionVersion,
        now_ms: int,
    ) -> TxnOutcome[EndTxnResult]:
        request = EndArguments(presented, commit, client_version, self.config.transaction_version)
        return self._decide(
            transactional_id,
            presented,
            lambda entry: end_txn.decide(entry, request, self._allocate_producer_id, now_ms),
            EndTxnResult.failed,
        )

    def count_by_state(self) -> Counter[str]:
        counts = Counter(entry.metadata.state for entry in self._entries.values() if entry.metadata.exists)
        return Counter({NAME_OF[state]: count for state, count in counts.items()})

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """Raises KafkaError."""
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        entry = self._find(transactional_id)
        if entry is None or not entry.metadata.exists:
            reason = f"{self._subject(transactional_id)}: it was never initialised, or is forgotten since"
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, reason)
        return listing.description_of(entry)

    def entries(self) -> list[TxnEntry]:
        """Raises COORDINATOR_LOAD_IN_PROGRESS: a list without this partition's ids would be mistaken for all."""
        self._check_loaded()
        return list(self._entries.values())

    # The coordinator's own work

    def markers_acknowledged(
        self, sent: SendMarkers, acknowledged: Iterable[TopicPartition], now_ms: int
    ) -> TxnOutcome[IdResult]:
        """These partitions have the marker. The last one makes the outcome carry the Complete* record.

        Also the way to ask for that record again, with no partitions, after its append failed.
        """
        entry = self._entries.get(sent.transactional_id)
        if entry is None or entry.markers is not sent:
            return TxnOutcome(
                response=IdResult(ErrorCode.NOT_COORDINATOR, "this completion is over", sent.transactional_id)
            )
        if not markers.acknowledge(entry, frozenset(acknowledged)):
            return TxnOutcome(response=IdResult(transactional_id=sent.transactional_id))
        target = epochs.completed(entry.metadata, now_ms)
        reason = f"{'committed' if sent.commit else 'aborted'} on all partitions"
        response = IdResult(ErrorCode.NONE, reason, sent.transactional_id, target.transaction_identity)
        return self._log(entry, Transition(target, response), response)

    def waits_for(self, sent: SendMarkers) -> bool:
        """Whether this shard has decided it, and its transaction is not complete."""
        entry = self._entries.get(sent.transactional_id)
        return entry is not None and entry.markers is sent

    def markers_given_up(self, sent: SendMarkers, code: ErrorCode) -> str:
        """A partition refused the marker for good (see `markers.reaction_to`). No Complete* will be logged.

        The id stays pending until another coordinator, or this one under a new epoch, loads it. Returns what to log.
        """
        sender = ProducerIdAndEpoch(sent.producer_id, sent.producer_epoch)
        return (
            f"{self._subject(sent.transactional_id, sender)}: {code.name} for its marker under coordinator epoch "
            f"{sent.coordinator_epoch}; a newer coordinator or producer has taken over, no more markers are sent"
        )

    def abort_timed_out(self, now_ms: int) -> list[TxnOutcome[IdResult]]:
        """One outcome for each transaction that was open for longer than its producer allowed."""
        return [
            self._abort(entry, fencing.abort_timed_out, now_ms)
            for entry in self._ongoing_entries()
            if fencing.has_timed_out(entry, now_ms)
        ]

    def abort_doubtful(self, now_ms: int) -> list[TxnOutcome[IdResult]]:
        """One outcome for each open transaction of which a part may be lost; right after `on_loaded`."""
        return [
            self._abort(entry, fencing.abort_doubtful, now_ms)
            for entry in self._ongoing_entries()
            if entry.is_doubtful and entry.pending_state is None
        ]

    def _ongoing_entries(self) -> list[TxnEntry]:
        return [self._entries[each] for each in sorted(self._ongoing)] if self.is_loaded else []

    def expire_ids(self, now_ms: int) -> list[TxnOutcome[IdResult]]:
        """One outcome with a tombstone for each id nobody has used for longer than `transactional.id.expiration.ms`."""
        if not self.is_loaded:
            return []
        oldest_ms = now_ms - self.config.transactional_id_expiration_ms
        idle = [
            entry for entry in self._entries.values() if entry.is_at_rest and entry.metadata.last_update_ms <= oldest_ms
        ]
        return [self._expire(entry, now_ms) for entry in idle[: self.config.expired_ids_per_scan_max]]

    # Inside

    def _check_loaded(self) -> None:
        if not self.is_loaded:
            raise KafkaError(self.refusal, f"{TRANSACTION_STATE_TOPIC}-{self.partition} is not loaded here")

    def _find(self, transactional_id: str) -> TxnEntry | None:
        self._check_loaded()
        return self._entries.get(transactional_id)

    def _existing(self, transactional_id: str | None) -> TxnEntry:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        entry = self._find(transactional_id)
        if entry is None:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"the id is unknown: it was never initialised, or was not used for "
                f"{self.config.transactional_id_expiration_ms} ms",
            )
        return entry

    def _abort(self, entry: TxnEntry, decide: fencing.OwnAbort, now_ms: int) -> TxnOutcome[IdResult]:
        identity = entry.metadata.client_identity
        try:
            decision = decide(entry, self.config, self._allocate_producer_id, now_ms)
        except KafkaError as error:
            reason = f"{self._subject(entry.transactional_id, identity)}: not aborted yet, {error.message}"
            return TxnOutcome(response=IdResult(error.code, reason, entry.transactional_id, identity))
        return self._carry_out(entry, decision, identity)

    def _expire(self, entry: TxnEntry, now_ms: int) -> TxnOutcome[IdResult]:
        transactional_id, metadata = entry.transactional_id, entry.metadata
        check_path(transactional_id, (metadata.state, TxnState.DEAD), self.config.transaction_version)
        record = records.encode_tombstone(transactional_id)
        entry.pending_state = TxnState.DEAD
        entry.in_flight = PendingTransition(record, target=None)
        identity = metadata.client_identity
        idle_ms = now_ms - metadata.last_update_ms
        reason = f"{self._subject(transactional_id, identity)}: forgotten, it was not used for {idle_ms} ms"
        return TxnOutcome(
            response=IdResult(ErrorCode.NONE, reason, transactional_id, identity),
            records=[record],
            transactional_id=transactional_id,
        )

    def _decide(
        self,
        transactional_id: str | None,
        presented: ProducerIdAndEpoch,
        decide: Callable[[TxnEntry], Transition[R] | R],
        failed: Callable[[ErrorCode, str], R],
    ) -> TxnOutcome[R]:
        try:
            entry = self._existing(transactional_id)
            decision = decide(entry)
        except KafkaError as error:
            return self._refuse(failed, transactional_id, presented, error)
        return self._carry_out(entry, decision, presented)

    def _carry_out(
        self, entry: TxnEntry, decision: Transition[R] | R, presented: ProducerIdAndEpoch | None
    ) -> TxnOutcome[R]:
        if not isinstance(decision, Transition):
            return TxnOutcome(response=self._worded(decision, entry.transactional_id, presented))
        return self._log(entry, decision, self._worded(decision.response, entry.transactional_id, presented))

    def _log(self, entry: TxnEntry, transition: Transition[R], response: R) -> TxnOutcome[R]:
        """Mark the id as pending and hand its record out."""
        target, transactional_id = transition.target, entry.transactional_id
        invariant(entry.in_flight is None, "%r: two records in flight", transactional_id)
        invariant(
            entry.pending_state is None or entry.pending_state is target.state,
            "%r: a move to %s while one to %s is pending",
            transactional_id,
            NAME_OF[target.state],
            entry.pending_state,
        )
        through = (TxnState.PREPARE_EPOCH_FENCE,) if transition.is_epoch_fence else ()
        check_path(transactional_id, (entry.metadata.state, *through, target.state), target.client_version)
        entry.pending_state = target.state
        record = records.encode_record(transactional_id, target, self.config.transaction_version)
        entry.in_flight = PendingTransition(record, target, transition.is_epoch_fence, transition.fence)
        self._keep(entry)
        return TxnOutcome(
            response=response,
            records=[record],
            transactional_id=transactional_id,
            wait_for=transactional_id if transition.then_wait else None,
        )

    def _read(self, record: CoordinatorRecord) -> DecodedRecord | UnknownRecord:
        """The content of a record. A record that was just written must be the one that was decided."""
        if not self.is_loaded:
            return records.decode_record(record.key, record.value)
        transactional_id = records.decode_key(record.key)
        entry = self._entries.get(transactional_id)
        in_flight = None if entry is None else entry.in_flight
        if in_flight is None:
            raise InvariantError(f"{transactional_id!r}: a record was applied that nobody had decided")
        invariant(
            record == in_flight.record, "%r: %s was written, %s was decided", transactional_id, record, in_flight.record
        )
        return DecodedRecord(transactional_id, in_flight.target)

    def _finish_transition(self, entry: TxnEntry) -> None:
        """The record that was decided for this id, if any, is the one that is being applied."""
        in_flight = entry.in_flight
        if in_flight is None or in_flight.target is None:
            return
        completeness.check(
            entry.transactional_id, entry.metadata, in_flight.target, is_epoch_fence=in_flight.is_epoch_fence
        )
        entry.pending_state = entry.in_flight = entry.markers = None
        if in_flight.fence is not None:
            entry.remember(in_flight.fence)

    def _install(self, entry: TxnEntry, metadata: TxnMetadata) -> None:
        known = self._entries.get(entry.transactional_id)
        self.enlisted += len(metadata.partitions) - (0 if known is None else len(known.metadata.partitions))
        entry.metadata = metadata
        self._keep(entry)
        if metadata.state is TxnState.ONGOING:
            self._ongoing.add(entry.transactional_id)
        else:
            self._ongoing.discard(entry.transactional_id)

    def _remove(self, transactional_id: str) -> None:
        self._forget(transactional_id)
        self._ongoing.discard(transactional_id)

    def _refuse(
        self,
        failed: Callable[[ErrorCode, str], R],
        transactional_id: str | None,
        presented: ProducerIdAndEpoch | None,
        error: KafkaError,
    ) -> TxnOutcome[R]:
        response = self._worded(failed(error.code, error.message), transactional_id or "", presented)
        waits = error.code is ErrorCode.CONCURRENT_TRANSACTIONS
        return TxnOutcome(response=response, wait_for=transactional_id if waits else None)

    def _worded(self, response: R, transactional_id: str, presented: ProducerIdAndEpoch | None) -> R:
        if not response.reason:
            return response
        return replace(response, reason=f"{self._subject(transactional_id, presented)}: {response.reason}")

    def _subject(self, transactional_id: str, identity: ProducerIdAndEpoch | None = None) -> str:
        text = f"transactional id {transactional_id!r} ({TRANSACTION_STATE_TOPIC}-{self.partition})"
        if identity is None:
            return text
        return f"{text}, producer id {identity.producer_id} epoch {identity.epoch}"


def _admit_all(count: int) -> None:
    """The default: no limit on partitions in transactions."""
