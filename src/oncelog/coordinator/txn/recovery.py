"""After a crash: what the logs of partitions say, against what the coordinator's own log says.

A killed process leaves both as they were, and then they agree: a transaction that is open on a partition is Ongoing or
being completed here, and no partition has seen an epoch that was not logged here before. When the machine goes down,
any log may have lost its end, each another one. What can be known is made good:

- A transaction is open on a partition, and it is known how it ended: its marker was lost, and is written again.
- It is open, and nothing is known of it, or something else: it is aborted, for it must not become part of the next one.
- A partition has seen a newer epoch: what happened to the id since is lost. The id is *doubtful*.
- After the machine went down every id is doubtful that has no younger record: a producer may be alive with an identity
  that is not in the log any more, or with a transaction of which a part is lost.

A producer with an identity of a doubtful id is fenced, its open transaction is aborted, and its next InitProducerId
gets a producer id that nobody has seen. The open transaction of a two-phase commit, which is not ours to abort, makes
its id doubtful only if something contradicts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import Enum, auto
from typing import NamedTuple

from oncelog.coordinator.txn.effects import SendMarkers
from oncelog.coordinator.txn.metadata import TxnEntry, TxnMetadata
from oncelog.coordinator.txn.state import COMPLETED, PREPARED, TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import EPOCH_EXHAUSTED, EPOCH_MAX, CoordinatorEpoch, ProducerEpoch, ProducerId, TopicPartition


class OpenTransaction(NamedTuple):
    """A transaction that is open on a partition: there is no marker of it."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """The coordinator epoch of the producer's last marker on this partition, -1 if there was none."""
    last_marker_ms: int
    """When that was written, by the clock of the logs; -1 if it is not known."""


class Repair(Enum):
    """What is done about a transaction that is open on a partition."""

    LEAVE = auto()
    """Nothing: it is open here too, or its marker is on its way."""
    COMMIT = auto()
    """Write the marker that is missing: it was committed."""
    ABORT = auto()
    """Write the marker that is missing: it was aborted."""
    DOUBT = auto()
    """Abort it. The id is doubtful."""


class MissingMarker(NamedTuple):
    open: OpenTransaction
    transactional_id: str
    commit: bool

    def order(self, coordinator_epoch: CoordinatorEpoch) -> SendMarkers:
        """An epoch above that of the records: the one that TV2 would have, and one that fences an older client.

        Of no id: that waits for markers of another transaction, if for any, and what it sends anew is not this one.
        """
        return SendMarkers(
            transactional_id="",
            producer_id=ProducerId(self.open.producer_id),
            producer_epoch=_above(self.open.producer_epoch),
            coordinator_epoch=CoordinatorEpoch(max(coordinator_epoch, self.open.coordinator_epoch)),
            commit=self.commit,
            partitions=frozenset({self.open.partition}),
            transaction_version=TransactionVersion.TV0,
        )


@dataclass(frozen=True, slots=True)
class Recovered:
    missing: list[MissingMarker] = field(default_factory=list)
    unknown: list[OpenTransaction] = field(default_factory=list)
    """Transactions of producer ids that no transactional id here has or had."""


def recover(
    entries: Iterable[TxnEntry],
    producer_epochs: Mapping[int, int],
    open_transactions: Iterable[OpenTransaction],
    doubtful_below_offset: int,
) -> Recovered:
    """Marks ids that are doubtful, and moves epochs above what partitions would refuse.

    `producer_epochs` are the highest that partitions have seen. An id whose newest record lies below
    `doubtful_below_offset` may have had others, which were lost.
    """
    entries = list(entries)
    for entry in entries:
        is_kept = entry.metadata.state is TxnState.ONGOING and entry.metadata.never_times_out
        seen = producer_epochs.get(entry.metadata.producer_id, -1)
        is_behind = seen > entry.metadata.producer_epoch
        entry.is_doubtful = is_behind or (entry.record_offset < doubtful_below_offset and not is_kept)
    recovered = _missing_markers(entries, open_transactions, doubtful_below_offset)
    for entry in entries:
        _move_above(entry, producer_epochs.get(entry.metadata.producer_id, -1))
    return recovered


def _move_above(entry: TxnEntry, seen: int) -> None:
    """Partitions refuse markers of an epoch below one that they have seen: use the next one."""
    if seen > entry.metadata.producer_epoch and not entry.is_at_rest:
        entry.metadata = replace(entry.metadata, producer_epoch=_above(seen))


def _missing_markers(
    entries: list[TxnEntry], open_transactions: Iterable[OpenTransaction], doubtful_below_offset: int
) -> Recovered:
    owners = {entry.metadata.prev_producer_id: entry for entry in entries}
    owners |= {entry.metadata.producer_id: entry for entry in entries}
    recovered = Recovered()
    touched: list[tuple[TxnEntry, int]] = []
    for transaction in open_transactions:
        owner = owners.get(ProducerId(transaction.producer_id))
        if owner is None:
            recovered.unknown.append(transaction)
            continue
        lost_from_ms = owner.written_ms if owner.record_offset < doubtful_below_offset else None
        repair = judge(owner.metadata, transaction, lost_from_ms)
        if repair is Repair.LEAVE:
            continue
        recovered.missing.append(MissingMarker(transaction, owner.transactional_id, repair is Repair.COMMIT))
        if repair is Repair.DOUBT:
            owner.is_doubtful = True
            touched.append((owner, transaction.producer_epoch))
    for owner, epoch in touched:
        _move_above(owner, epoch + 1)
    return recovered


def judge(metadata: TxnMetadata, transaction: OpenTransaction, lost_from_ms: int | None = None) -> Repair:
    """The older protocol does not tell transactions of one epoch apart: an end that is known may be that of another.

    `lost_from_ms` is the time of the record, by the clock of the logs, if younger ones may be lost.
    """
    state = metadata.state
    if state in PREPARED and _is_being_ended(metadata, transaction, lost_from_ms):
        return Repair.LEAVE
    if state is TxnState.ONGOING and _is_part(metadata, transaction):
        return Repair.LEAVE if transaction.producer_epoch == metadata.producer_epoch else Repair.DOUBT
    if state in COMPLETED and metadata.client_version.bumps_epochs and _was_last(metadata, transaction):
        return Repair.COMMIT if state is TxnState.COMPLETE_COMMIT else Repair.ABORT
    return Repair.DOUBT


def _is_part(metadata: TxnMetadata, transaction: OpenTransaction) -> bool:
    return transaction.partition in metadata.partitions and transaction.producer_id == metadata.producer_id


def _is_being_ended(metadata: TxnMetadata, transaction: OpenTransaction, lost_from_ms: int | None) -> bool:
    """Whether the markers of Prepare* are for this transaction, and not for one before it."""
    if not _is_part(metadata, transaction):
        return False
    if metadata.client_version.bumps_epochs:
        return transaction.producer_epoch + 1 == metadata.producer_epoch
    if metadata.state is TxnState.PREPARE_ABORT:
        return transaction.producer_epoch <= metadata.producer_epoch
    # Where nothing is lost, whatever is open waits for these markers. No clock is asked, for it may have been set.
    is_before = lost_from_ms is None or transaction.last_marker_ms < lost_from_ms
    return is_before and transaction.producer_epoch == metadata.producer_epoch


def _was_last(metadata: TxnMetadata, transaction: OpenTransaction) -> bool:
    """Whether this is the transaction that Complete* is about: its end has bumped the epoch, or rotated the id."""
    if transaction.producer_id == metadata.producer_id:
        return transaction.producer_epoch + 1 == metadata.producer_epoch
    return transaction.producer_epoch == EPOCH_EXHAUSTED and metadata.producer_epoch == 0


def _above(epoch: int) -> ProducerEpoch:
    return ProducerEpoch(min(epoch + 1, EPOCH_MAX))
