"""What is known of one transactional id: the durable value, and what lives beside it in memory only.

Two identities. A producer is known by (producer id, epoch). Nearly always there is one such pair. After
InitProducerId with `keepPreparedTxn` (KIP-939) there are two: the open, prepared transaction keeps the pair its records
were written with, because its markers must carry it, while the client that came back to settle it was given a newer
pair, so that its former self is fenced. The transaction's pair stays in `producer_*` and the client's is in
`next_producer_*`; a `next_producer_epoch` is what tells that there are two. Completing the transaction makes the
client's pair the only one.

`next_producer_id` without an epoch is the older case: the epochs of `producer_id` are used up by an EndTxn, and the
Complete* record will move the id to (`next_producer_id`, 0).
"""

from __future__ import annotations

from dataclasses import field
from typing import Final

from oncelog.coordinator.outcome import CoordinatorRecord
from oncelog.coordinator.txn.effects import SendMarkers
from oncelog.coordinator.txn.state import AT_REST, PREPARED, TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import (
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
)

TWO_PHASE_COMMIT_TIMEOUT_MS: Final = 2**31 - 1
"""Stored in place of a time-out for a participant of a two-phase commit: its transactions never time out."""

FENCES_REMEMBERED_MAX: Final = 4


def is_exhausted(epoch: int) -> bool:
    """Whether a client at this epoch cannot be given the next one, which is reserved for fencing it."""
    return epoch >= EPOCH_EXHAUSTED


@dataclass(frozen=True, slots=True)
class TxnMetadata:
    """One value of `__transaction_state`. A transition replaces it as a whole."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    timeout_ms: int
    state: TxnState
    last_update_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    prev_producer_id: ProducerId = NO_PRODUCER_ID
    next_producer_id: ProducerId = NO_PRODUCER_ID
    next_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    client_version: TransactionVersion = TransactionVersion.TV0
    last_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """The client's epoch before the last bump it asked for. Not recorded, as in Kafka: unknown after a reload."""

    @property
    def transaction_identity(self) -> ProducerIdAndEpoch:
        """Whose records the transaction consists of."""
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def keeps_prepared(self) -> bool:
        """Whether the transaction's identity and the client's differ."""
        return self.next_producer_epoch != NO_PRODUCER_EPOCH

    @property
    def client_identity(self) -> ProducerIdAndEpoch:
        """What the current client must present."""
        if self.keeps_prepared:
            return ProducerIdAndEpoch(self.next_producer_id, self.next_producer_epoch)
        return self.transaction_identity

    @property
    def identity_once_complete(self) -> ProducerIdAndEpoch:
        """Of a Prepare* value: the identity that its Complete* record will have, and that the client is told
        already."""
        if not self.keeps_prepared and self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdAndEpoch(self.next_producer_id, ProducerEpoch(0))
        return self.client_identity

    @property
    def highest_producer_id(self) -> int:
        return max(self.producer_id, self.prev_producer_id, self.next_producer_id)

    @property
    def never_times_out(self) -> bool:
        return self.timeout_ms == TWO_PHASE_COMMIT_TIMEOUT_MS

    @property
    def exists(self) -> bool:
        """False of an id whose first record is still in flight."""
        return self.producer_epoch != NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class Fence:
    """Why a producer was fenced, for the answer when it comes back."""

    fenced: ProducerIdAndEpoch
    why: str


@dataclass(frozen=True, slots=True)
class PendingTransition:
    """A value in flight to the log, and what its fate will mean."""

    record: CoordinatorRecord
    target: TxnMetadata | None
    """None while a tombstone is in flight."""
    is_epoch_fence: bool = False
    fence: Fence | None = None


@dataclass(slots=True)
class TxnEntry:
    """An id in memory. Everything but `metadata` is lost with the process, and may be."""

    transactional_id: str
    metadata: TxnMetadata
    pending_state: TxnState | None = None
    """The state that is being moved to. Requests that meet it must wait."""
    in_flight: PendingTransition | None = None
    """The record that moves it there, once it was handed out. None while only markers are waited for."""
    markers: SendMarkers | None = None
    unacknowledged: set[TopicPartition] = field(default_factory=set)
    """Partitions whose marker is not known to be written; only while Prepare*."""
    has_failed_epoch_fence: bool = False
    """A fence was decided under TV0/1 but could not be logged: the producer stays fenced all the same."""
    fences: tuple[Fence, ...] = ()
    record_offset: int = -1
    """The offset of its newest record in the log."""
    written_ms: int = NO_TIMESTAMP
    """When that was appended, by the clock of the logs. Known only of records that a load has read."""
    is_doubtful: bool = False
    """What happened to it last may be lost (see `recovery`): nobody's identity counts until InitProducerId."""

    @property
    def is_settled(self) -> bool:
        return self.pending_state is None and self.metadata.state not in PREPARED

    @property
    def is_at_rest(self) -> bool:
        return self.pending_state is None and self.metadata.state in AT_REST

    @property
    def epoch_in_force(self) -> ProducerEpoch:
        """The recorded epoch, or the one above it that a fence which failed to reach the log stands for."""
        epoch = self.metadata.producer_epoch
        return ProducerEpoch(epoch + 1) if self.has_failed_epoch_fence and epoch < EPOCH_MAX else epoch

    @property
    def client_identity(self) -> ProducerIdAndEpoch:
        if self.metadata.keeps_prepared:
            return self.metadata.client_identity
        return ProducerIdAndEpoch(self.metadata.producer_id, self.epoch_in_force)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Those of the open transaction; once it is decided, those whose marker is still missing."""
        return frozenset(self.unacknowledged) if self.metadata.state in PREPARED else self.metadata.partitions

    def remember(self, fence: Fence) -> None:
        self.fences = (*self.fences, fence)[-FENCES_REMEMBERED_MAX:]

    def why_fenced(self, presented: ProducerIdAndEpoch) -> str:
        """Why a producer was fenced, in words, if this process remembers it."""
        if self.is_doubtful:
            return "after a crash the coordinator may have lost what this id did last; initialise the producer again"
        current = self.client_identity
        if presented.producer_id == current.producer_id and presented.epoch > current.epoch:
            return f"the current epoch is {current.epoch}; epoch {presented.epoch} was never given out"
        for fence in self.fences:
            if fence.fenced.producer_id == presented.producer_id and fence.fenced.epoch >= presented.epoch:
                return fence.why
        return f"the id has moved on to producer id {current.producer_id} epoch {current.epoch}"
