"""What a partition remembers of one producer: its epoch, its open transaction and its last five batches."""

from __future__ import annotations

from typing import Final

from oncelog.core.ids import NO_COORDINATOR_EPOCH, NO_OFFSET, NO_SEQUENCE, NO_TIMESTAMP, next_sequence
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.batch import TRANSACTIONAL_BIT, BatchHeader, ControlMarker

BATCHES_RETAINED_MAX: Final = 5
"""A client may have five batches in flight; any of them can come again, so this many are remembered."""


class CompletedTxn(NamedTuple):
    """A transaction that a marker has ended on this partition. `last_offset` is the offset of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class CachedBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class LastRecord(NamedTuple):
    """What compaction must leave of a producer: the offset of its last data, -1 if there is none, and its epoch."""

    offset: int
    epoch: int


class ProducerEntry:
    """Mutable state of one producer id. `next_sequence` is kept up to date so that the usual check is one comparison.

    `last_append_ms` is the broker's clock at the last append. Kafka goes by the batch timestamp alone, which a client
    that writes old records sets far in the past: its state would expire while it writes, and with it the protection
    against duplicates. See `last_active_ms`, which is what a snapshot has for a timestamp.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_append_ms",
        "last_marker_ms",
        "last_timestamp",
        "next_sequence",
        "producer_id",
        "txn_first_offset",
    )

    def __init__(
        self,
        producer_id: int,
        epoch: int,
        *,
        coordinator_epoch: int = NO_COORDINATOR_EPOCH,
        last_timestamp: int = NO_TIMESTAMP,
        txn_first_offset: int = NO_OFFSET,
        batch: CachedBatch | None = None,
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.last_append_ms: int = NO_TIMESTAMP
        self.last_marker_ms: int = NO_TIMESTAMP
        """Not part of a snapshot: a crash can only take what came after the last one."""
        self.txn_first_offset: int = txn_first_offset
        self.batches: list[CachedBatch] = [] if batch is None else [batch]
        self.next_sequence = 0 if batch is None else next_sequence(batch.last_sequence)

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_record(self) -> LastRecord:
        return LastRecord(self.batches[-1].last_offset if self.batches else NO_OFFSET, self.epoch)

    @property
    def last_active_ms(self) -> int:
        return max(self.last_timestamp, self.last_append_ms)

    def has_open_txn(self, epoch: int) -> bool:
        """Whether a transaction *of this epoch* is open. A newer epoch must not ride on an older one's transaction."""
        return self.txn_first_offset >= 0 and self.epoch == epoch

    def find_duplicate(self, header: BatchHeader) -> CachedBatch | None:
        """What a client has sent before. Nothing is sent again when its transaction has ended, so a batch of a
        transaction that has the numbers of an earlier one's is another one: its client has lost count."""
        if header.producer_epoch != self.epoch:
            return None
        first_sequence, last_sequence = header.base_sequence, header.last_sequence
        for batch in self.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                is_ended = self.txn_first_offset < 0 or batch.base_offset < self.txn_first_offset
                return None if is_ended and header.attributes & TRANSACTIONAL_BIT else batch
        return None

    def add_data(self, header: BatchHeader) -> None:
        """Remember a batch. One that does not follow its predecessor, as a coordinator's never does, displaces it.

        The remembered sequences thus have no gap and the next one cannot be among them, which is what allows a batch
        with the next sequence to be accepted without a search for duplicates.
        """
        if header.producer_epoch != self.epoch:
            self.start_epoch(header.producer_epoch)
        elif header.base_sequence != self.next_sequence:
            self.batches.clear()
        last_sequence = header.last_sequence
        last_offset = header.base_offset + header.last_offset_delta
        timestamp = header.max_timestamp
        batches = self.batches
        batches.append(CachedBatch(header.base_sequence, last_sequence, header.base_offset, last_offset, timestamp))
        if len(batches) > BATCHES_RETAINED_MAX:
            del batches[0]
        self.next_sequence = next_sequence(last_sequence)
        self.last_timestamp = timestamp

    def add_marker(self, header: BatchHeader, marker: ControlMarker) -> None:
        """End the open transaction. A marker of the same epoch (TV0/1) leaves the sequence running."""
        if header.producer_epoch != self.epoch:
            self.start_epoch(header.producer_epoch)
        self.coordinator_epoch = marker.coordinator_epoch
        self.txn_first_offset = NO_OFFSET
        self.last_timestamp = self.last_marker_ms = header.max_timestamp

    def before(self, offset: int) -> ProducerEntry | None:
        """The entry as it was when the log ended at `offset`, as far as that can still be told after later batches.

        None if all that is known comes from batches behind it, so that a replay of these finds it again.
        """
        older = [batch for batch in self.batches if batch.last_offset < offset]
        txn_first_offset = self.txn_first_offset if self.txn_first_offset < offset else NO_OFFSET
        if self.batches and not older and txn_first_offset < 0:
            return None
        return ProducerEntry(
            self.producer_id,
            self.epoch,
            coordinator_epoch=self.coordinator_epoch,
            last_timestamp=self.last_active_ms,
            txn_first_offset=txn_first_offset,
            batch=older[-1] if older else None,
        )

    def copy(self) -> ProducerEntry:
        twin = ProducerEntry(
            self.producer_id,
            self.epoch,
            coordinator_epoch=self.coordinator_epoch,
            last_timestamp=self.last_timestamp,
            txn_first_offset=self.txn_first_offset,
        )
        twin.last_append_ms = self.last_append_ms
        twin.last_marker_ms = self.last_marker_ms
        twin.batches = self.batches.copy()
        twin.next_sequence = self.next_sequence
        return twin

    def start_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches.clear()
        self.next_sequence = 0
