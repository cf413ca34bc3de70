"""The producers of one partition: who may append what, and which transactions are open.

Theory of operation
-------------------
`check` decides and changes nothing; `apply` changes and never rejects. Between the two the log writes the bytes, so
state and log can only differ by a crash, after which the log is replayed through `apply`.

A client's data batch is judged in this order:

1. exact duplicate (same epoch, first and last sequence) of one of the last five batches, and of the open transaction if
   it is transactional: answered with the old offsets
2. epoch older than the partition has seen: INVALID_PRODUCER_EPOCH, before any look at the guard (KAFKA-19690)
3. transactional, no transaction of this epoch open here, and no valid guard: INVALID_TXN_STATE
4. TV2 and no batch remembered: the first sequence must be 0, else OUT_OF_ORDER_SEQUENCE_NUMBER (KAFKA-18202)
5. beyond the lowest sequence that waits for verification: OUT_OF_ORDER_SEQUENCE_NUMBER
6. a new epoch starts at 0, the same epoch goes on at the next sequence (2147483647 is followed by 0), else
   OUT_OF_ORDER_SEQUENCE_NUMBER; a producer without any state may start anywhere
7. not transactional while a transaction is open: INVALID_TXN_STATE

A coordinator's data batch (offset commits) takes 2, 3 and 7 only. That TV2 applies is known from the verification
entry, which records the version of the producing request. A replicated batch was judged by its leader and is never
rejected.

A marker's producer epoch may not be older than the partition's; a marker of TV2 must be newer, because every end of a
TV2 transaction bumps the epoch (KIP-1228), except that an equal one passes when no transaction is open (a repeated
marker, KAFKA-19999) or when there is no higher epoch left (32767). Its coordinator epoch may not be older than the last
marker's.

A transaction is *ongoing* from its first batch to its marker, and *unreplicated* from its marker until the high
watermark has passed that. The last stable offset is held back by the first offset of both. Ongoing transactions begin
in offset order and are therefore kept in insertion order. Unreplicated ones leave in marker order, so one that began
later than a transaction which ended after it can never be the oldest and is not even kept: the front of the queue is
always the minimum.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import EPOCH_MAX, NO_OFFSET, NO_PRODUCER_EPOCH, TopicPartition
from oncelog.core.invariant import invariant
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, ControlMarker
from oncelog.storage.producer_entry import CompletedTxn, LastRecord, ProducerEntry
from oncelog.storage.producer_snapshot import (
    CorruptSnapshotError,
    decode_snapshot,
    encode_known_before,
    encode_snapshot,
)
from oncelog.storage.verification_guards import VerificationEntry, VerificationGuard, VerificationTable

__all__ = [
    "CompletedTxn",
    "ControlMarker",
    "CorruptSnapshotError",
    "DuplicateBatch",
    "Origin",
    "PendingAppend",
    "ProducerStateManager",
    "ProducerStatus",
    "VerificationGuard",
]

LATE_TRANSACTION_BUFFER_MS: Final = 5 * 60 * 1000
"""How long beyond transaction.max.timeout.ms a coordinator may take to abort before a transaction counts as late."""

_KIND_MASK: Final = TRANSACTIONAL_BIT | CONTROL_BIT
_STRICT_MARKER_TV: Final = 2

logger = logging.getLogger(__name__)


class Origin(Enum):
    """Who wrote the batch, which decides how much of it is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class DuplicateBatch(NamedTuple):
    """Where the batch already is in the log. `timestamp` is the one to answer with."""

    base_offset: int
    last_offset: int
    timestamp: int


class ProducerStatus(NamedTuple):
    """One row of DescribeProducers. -1 stands for none throughout, as in the protocol."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


class PendingAppend:
    """What the batches of one append that have passed `check` will change, so that the next one is checked against it.

    Only needed when an append holds several batches. Throw it away afterwards: `apply` does the real thing.
    """

    __slots__ = ("entries", "verified")

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.verified: set[int] = set()

    def add(self, header: BatchHeader, control: ControlMarker | None, current: ProducerEntry | None) -> None:
        producer_id = header.producer_id
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = current.copy() if current is not None else ProducerEntry(producer_id, header.producer_epoch)
            self.entries[producer_id] = entry
        if control is not None:
            entry.add_marker(header, control)
            return
        entry.add_data(header)
        if header.attributes & TRANSACTIONAL_BIT:
            self.verified.add(producer_id)
            if entry.txn_first_offset < 0:
                entry.txn_first_offset = max(header.base_offset, 0)


class ProducerStateManager:
    """Producer state of one partition. `map_end_offset` is the offset up to which batches have been applied.

    `verification_enabled` is transaction.partition.verification.enable. It and `producer_expiration_ms` may be changed
    at any time. `admit` is called before a client's batch makes a producer known, with how many are known,
    and raises what refuses it.
    """

    def __init__(self, partition: TopicPartition, *, producer_expiration_ms: int) -> None:
        self.partition = partition
        self.producer_expiration_ms = producer_expiration_ms
        self.verification_enabled = True
        self.admit: Callable[[int], None] = _admit_all
        self.map_end_offset = 0
        self.high_watermark = 0
        """As last told to `on_high_watermark`."""
        self._producers: dict[int, ProducerEntry] = {}
        self._verifications = VerificationTable()
        self._verification_entries = self._verifications.entries
        self._ongoing: OrderedDict[int, int] = OrderedDict()
        self._unreplicated: deque[CompletedTxn] = deque()

    def check(
        self,
        header: BatchHeader,
        *,
        origin: Origin,
        control: ControlMarker | None = None,
        guard: VerificationGuard | None = None,
        marker_tv: int = 0,
        pending: PendingAppend | None = None,
    ) -> DuplicateBatch | None:
        """None if the batch may be appended, its old place if it is a duplicate, KafkaError if it must not be.

        Changes nothing but `pending`. An append of several batches passes the same fresh PendingAppend with each of
        them; the first duplicate is the answer for the whole append. `control` is the parsed content of a marker and
        `marker_tv` the transaction version that came with it (WriteTxnMarkers v2, 0 below). `guard` is what
        `start_verification` gave out for the request. For origin CLIENT the caller has refused control batches and
        negative sequences.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        entry = self._producers.get(producer_id)
        if (
            entry is not None
            and header.base_sequence == entry.next_sequence
            and header.producer_epoch == entry.epoch
            and header.attributes & _KIND_MASK == (TRANSACTIONAL_BIT if entry.txn_first_offset >= 0 else 0)
            and producer_id not in self._verification_entries
            and pending is None
        ):
            return None
        return self._check_fully(header, entry, origin, control, guard, marker_tv, pending)

    def _check_fully(
        self,
        header: BatchHeader,
        known: ProducerEntry | None,
        origin: Origin,
        control: ControlMarker | None,
        guard: VerificationGuard | None,
        marker_tv: int,
        pending: PendingAppend | None,
    ) -> DuplicateBatch | None:
        is_marker = control is not None and (control.is_commit or control.is_abort)
        if header.attributes & CONTROL_BIT and not is_marker:
            return None
        producer_id = header.producer_id
        entry = known if pending is None else pending.entries.get(producer_id, known)
        if origin is Origin.REPLICATION:
            self._warn_if_stale(header, control, entry)
        elif control is not None:
            self._check_marker(header, control, entry, marker_tv)
        else:
            duplicate = known.find_duplicate(header) if known is not None and origin is Origin.CLIENT else None
            if duplicate is not None:
                return DuplicateBatch(duplicate.base_offset, duplicate.last_offset, duplicate.timestamp)
            used = pending is not None and producer_id in pending.verified
            verification = None if used else self._verification_entries.get(producer_id)
            self._check_data(header, entry, origin, guard, verification)
        if pending is not None:
            pending.add(header, control, entry)
        return None

    def _check_data(
        self,
        header: BatchHeader,
        entry: ProducerEntry | None,
        origin: Origin,
        guard: VerificationGuard | None,
        verification: VerificationEntry | None,
    ) -> None:
        epoch = header.producer_epoch
        if entry is not None and epoch < entry.epoch:
            raise self._fenced(header.producer_id, epoch, entry.epoch)
        if header.attributes & TRANSACTIONAL_BIT:
            is_open = entry is not None and entry.has_open_txn(epoch)
            is_guarded = verification is not None and verification.guard is guard
            if self.verification_enabled and not is_open and not is_guarded:
                raise self._rejection(
                    ErrorCode.INVALID_TXN_STATE,
                    header,
                    "has no transaction open and none verified",
                    "the transaction ended before the batch arrived, or the coordinator was never asked",
                )
        if origin is Origin.CLIENT:
            self._check_sequence(header, entry, verification)
        if entry is not None and entry.txn_first_offset >= 0 and not header.attributes & TRANSACTIONAL_BIT:
            raise self._rejection(
                ErrorCode.INVALID_TXN_STATE,
                header,
                "sent a non-transactional batch",
                f"its transaction from offset {entry.txn_first_offset} is open, expected a transactional batch",
            )
        if entry is None and origin is Origin.CLIENT:
            self.admit(len(self._producers))

    def _check_sequence(
        self, header: BatchHeader, entry: ProducerEntry | None, verification: VerificationEntry | None
    ) -> None:
        sequence = header.base_sequence
        if verification is not None:
            if verification.supports_epoch_bump and sequence != 0 and (entry is None or not entry.batches):
                raise self._out_of_order(header, "expected sequence 0, as no batch of this producer is known")
            if sequence > verification.lowest_sequence:
                waiting = verification.lowest_sequence
                raise self._out_of_order(header, f"expected sequence {waiting}, which waits for verification, first")
        if entry is None or entry.epoch == NO_PRODUCER_EPOCH:
            return
        if header.producer_epoch != entry.epoch:
            if sequence != 0:
                raise self._out_of_order(header, f"expected sequence 0 for a new epoch, the last one is {entry.epoch}")
        elif sequence != entry.next_sequence:
            raise self._out_of_order(header, f"expected sequence {entry.next_sequence}")

    def _check_marker(
        self, header: BatchHeader, control: ControlMarker, entry: ProducerEntry | None, marker_tv: int
    ) -> None:
        if entry is None:
            return
        epoch = header.producer_epoch
        if epoch < entry.epoch:
            raise self._fenced(header.producer_id, epoch, entry.epoch)
        if (
            marker_tv >= _STRICT_MARKER_TV
            and epoch == entry.epoch
            and epoch != EPOCH_MAX
            and entry.txn_first_offset >= 0
        ):
            raise self._rejection(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                header,
                "sent a marker that belongs to an earlier transaction",
                f"expected an epoch above {entry.epoch} to end the one open from offset {entry.txn_first_offset}",
            )
        if control.coordinator_epoch < entry.coordinator_epoch:
            raise self._rejection(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                header,
                f"got a marker of coordinator epoch {control.coordinator_epoch}",
                f"expected at least {entry.coordinator_epoch}, which has been seen",
            )

    def _warn_if_stale(self, header: BatchHeader, control: ControlMarker | None, entry: ProducerEntry | None) -> None:
        if entry is None:
            return
        if header.producer_epoch < entry.epoch:
            logger.warning("replicated: %s", self._fenced(header.producer_id, header.producer_epoch, entry.epoch))
        if control is not None and control.coordinator_epoch < entry.coordinator_epoch:
            logger.warning(
                "replicated: marker for producer %d on %s at offset %d has coordinator epoch %d, %d has been seen",
                header.producer_id,
                self.partition,
                header.base_offset,
                control.coordinator_epoch,
                entry.coordinator_epoch,
            )

    def start_verification(
        self, producer_id: int, epoch: int, sequence: int, *, supports_epoch_bump: bool, now_ms: int
    ) -> VerificationGuard | None:
        """A guard to be handed to `check` once the coordinator has agreed, or None if there is no need to ask.

        `supports_epoch_bump` says that the request speaks TV2 (Produce v12+, TxnOffsetCommit v5+). An epoch older than
        the partition has seen is refused here, before the coordinator is bothered (KAFKA-18042).
        """
        entry = self._producers.get(producer_id)
        if entry is not None:
            if epoch < entry.epoch:
                raise self._fenced(producer_id, epoch, entry.epoch)
            if entry.has_open_txn(epoch):
                return None
        return self._verifications.start(
            producer_id, epoch=epoch, sequence=sequence, supports_epoch_bump=supports_epoch_bump, now_ms=now_ms
        )

    def apply(self, header: BatchHeader, *, control: ControlMarker | None = None, now_ms: int) -> CompletedTxn | None:
        """Take over a batch that is in the log; `header` has its final base offset.

        For a marker that ended a transaction here the answer says which. It stays ongoing until `complete` is called,
        after the transaction index has its entry. With -1 as `now_ms` the batch's own timestamp counts.
        """
        self.map_end_offset = header.base_offset + header.last_offset_delta + 1
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        attributes = header.attributes
        if attributes & CONTROL_BIT:
            return self._apply_marker(header, control, now_ms)
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._producers[producer_id] = ProducerEntry(producer_id, header.producer_epoch)
        entry.add_data(header)
        entry.last_append_ms = now_ms
        if attributes & TRANSACTIONAL_BIT:
            if entry.txn_first_offset < 0:
                self._begin_txn(entry, header.base_offset)
            if self._verification_entries:
                self._verifications.on_data(producer_id)
        return None

    def _apply_marker(self, header: BatchHeader, control: ControlMarker | None, now_ms: int) -> CompletedTxn | None:
        """A control batch of another type changes nothing. One that compaction emptied was left for its epoch, which
        fences its producer's predecessors. Kafka passes over it, and after a crash knows an older epoch."""
        is_marker = control is not None and (control.is_commit or control.is_abort)
        if not is_marker and header.records_count:
            return None
        producer_id = header.producer_id
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._producers[producer_id] = ProducerEntry(producer_id, header.producer_epoch)
            entry.last_append_ms = now_ms
        first_offset = entry.txn_first_offset
        if control is None or not is_marker:
            if first_offset < 0 and header.producer_epoch > entry.epoch:
                entry.start_epoch(header.producer_epoch)
                entry.last_append_ms = now_ms
            return None
        entry.add_marker(header, control)
        entry.last_append_ms = now_ms
        self._verifications.on_marker(producer_id, header.producer_epoch)
        if first_offset < 0:
            return None
        return CompletedTxn(producer_id, first_offset, header.base_offset, control.is_abort)

    def _begin_txn(self, entry: ProducerEntry, first_offset: int) -> None:
        newest = next(reversed(self._ongoing), NO_OFFSET)
        invariant(first_offset > newest, "%s: transaction begins at %s, below %s", self.partition, first_offset, newest)
        entry.txn_first_offset = first_offset
        self._ongoing[first_offset] = entry.producer_id

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of the oldest transaction without a marker."""
        return next(iter(self._ongoing), None)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that has no marker, or one the high watermark has not passed."""
        undecided = self.first_undecided_offset
        if not self._unreplicated:
            return undecided
        unreplicated = self._unreplicated[0].first_offset
        return unreplicated if undecided is None or unreplicated < undecided else undecided

    def lso_after(self, completed: CompletedTxn) -> int:
        """The last stable offset for the transaction index: the oldest other open transaction, else past the marker."""
        for first_offset in self._ongoing:
            if first_offset != completed.first_offset:
                return first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTxn) -> None:
        """The transaction index has its entry: the transaction waits for the high watermark from now on."""
        producer_id = self._ongoing.pop(completed.first_offset, None)
        invariant(producer_id == completed.producer_id, "%s: %s was not open", self.partition, completed)
        waiting = self._unreplicated
        if waiting:
            newest = waiting[-1].last_offset
            invariant(completed.last_offset > newest, "%s: %s ends below %s", self.partition, completed, newest)
        while waiting and waiting[-1].first_offset > completed.first_offset:
            waiting.pop()
        waiting.append(completed)

    def on_high_watermark(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        waiting = self._unreplicated
        while waiting and waiting[0].last_offset < high_watermark:
            waiting.popleft()

    def on_log_start_offset(self, log_start_offset: int) -> None:
        """Records below are gone. Their producers stay known (KIP-360): only time makes them expire."""
        self.on_high_watermark(max(self.high_watermark, log_start_offset))
        self.map_end_offset = max(self.map_end_offset, log_start_offset)

    def expire(self, now_ms: int, idle_ms: int | None = None) -> int:
        """Forget producers idle for `producer_expiration_ms` or a shorter time, never one with an open transaction.
        Returns how many."""
        idle_ms = min(self.producer_expiration_ms, idle_ms or self.producer_expiration_ms)
        expired = [pid for pid, entry in self._producers.items() if _is_idle(entry, now_ms, idle_ms)]
        for producer_id in expired:
            del self._producers[producer_id]
        self._verifications.expire(now_ms, self.producer_expiration_ms)
        return len(expired)

    def take_snapshot(self) -> bytes:
        """The content of `<map_end_offset>.snapshot`."""
        return encode_snapshot(self._producers.values())

    def take_earlier_snapshot(self, offset: int) -> bytes:
        """The content of `<offset>.snapshot`, where that was lost: what replay from `offset` on would not find."""
        return encode_known_before(offset, self._producers.values())

    def load_snapshot(self, data: bytes, now_ms: int, *, end_offset: int) -> None:
        """Replace everything by a snapshot up to `end_offset`. Raises CorruptSnapshotError and changes nothing then."""
        entries = decode_snapshot(data)
        self.clear(end_offset)
        for entry in entries:
            if not _is_idle(entry, now_ms, self.producer_expiration_ms):
                self._producers[entry.producer_id] = entry
        in_txn = [entry for entry in self._producers.values() if entry.txn_first_offset >= 0]
        for entry in sorted(in_txn, key=lambda entry: entry.txn_first_offset):
            self._ongoing[entry.txn_first_offset] = entry.producer_id

    def take_over(self, before: ProducerStateManager, added: Iterable[BatchHeader]) -> None:
        """What is in no log: settings, and who waits for the coordinator's word. `before` knows nothing of the `added`
        batches."""
        self.verification_enabled, self.admit = before.verification_enabled, before.admit
        self._verifications, self._verification_entries = before._verifications, before._verification_entries
        for header in added:
            if header.is_control:
                self._verifications.on_marker(header.producer_id, header.producer_epoch)
            elif header.is_transactional:
                self._verifications.on_data(header.producer_id)

    def clear(self, end_offset: int) -> None:
        """Forget everything, as before a reload after truncation. Batches from `end_offset` on are applied next."""
        self._producers.clear()
        self._verifications.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.map_end_offset = end_offset

    def __len__(self) -> int:
        """The number of producers known, with open transactions or without."""
        return len(self._producers)

    def highest_producer_id(self, below: int) -> int:
        """-1 if none is known."""
        return max((producer_id for producer_id in self._producers if producer_id < below), default=-1)

    def active_producers(self) -> list[ProducerStatus]:
        return [
            ProducerStatus(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )
            for entry in self._producers.values()
        ]

    def in_transaction(self) -> list[ProducerEntry]:
        """Producers with an open transaction, in the order of their first offsets."""
        return [self._producers[producer_id] for producer_id in self._ongoing.values()]

    def last_records(self) -> dict[int, LastRecord]:
        """By producer: what compaction must not remove, so that a replay of the log finds this state again."""
        return {producer_id: entry.last_record for producer_id, entry in self._producers.items()}

    def has_late_transaction(self, now_ms: int, transaction_max_timeout_ms: int) -> bool:
        """Whether the oldest open transaction should long have been aborted by its coordinator (KIP-664)."""
        for producer_id in self._ongoing.values():
            active_ms = self._producers[producer_id].last_active_ms
            return active_ms > 0 and now_ms - active_ms > transaction_max_timeout_ms + LATE_TRANSACTION_BUFFER_MS
        return False

    def _fenced(self, producer_id: int, epoch: int, seen: int) -> KafkaError:
        return KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {producer_id} epoch {epoch} is fenced on {self.partition}: epoch {seen} has been seen",
        )

    def _out_of_order(self, header: BatchHeader, expected: str) -> KafkaError:
        what = f"sent sequence {header.base_sequence} out of order"
        return self._rejection(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, header, what, expected)

    def _rejection(self, code: ErrorCode, header: BatchHeader, what: str, expected: str) -> KafkaError:
        who = f"producer {header.producer_id} epoch {header.producer_epoch}"
        return KafkaError(code, f"{who} {what} on {self.partition}: {expected}")


def _is_idle(entry: ProducerEntry, now_ms: int, idle_ms: int) -> bool:
    return entry.txn_first_offset < 0 and now_ms - entry.last_active_ms >= idle_ms


def _admit_all(known: int) -> None:
    """The default: no limit on producers."""
