"""Verification guards (KIP-890): no transactional batch enters a partition behind the coordinator's back.

Theory of operation
-------------------
A producer's first batch of a transaction on a partition may only be written while the coordinator knows that the
partition belongs to that transaction. Asking the coordinator takes a round trip, and in the meantime a marker can end
the transaction here. So the leader

1. opens an entry for the producer id, with a guard that nobody else can make (`start`),
2. asks the coordinator to verify (TV0/1) or add (TV2) the partition,
3. appends only if the very same guard is still in the table.

The first transactional data batch of the producer takes the entry away, because from then on the open transaction
itself is the proof. A marker takes it away too, because the transaction that was asked about is over; a guard obtained
before the marker is then worthless even if the same producer starts to verify again. One marker leaves it alone: under
TV2 the coordinator bumps the epoch with every end, so a marker of exactly the entry's epoch ended the *previous*
transaction and the entry belongs to the one that follows.

The entry also remembers the lowest sequence that asked. If that batch has to be retried, later batches in flight must
not overtake it, or the retry would be out of order for ever.
"""

from __future__ import annotations


class VerificationGuard:
    """Proof that its holder asked before the entry it came from was taken away. Compared by identity only."""

    __slots__ = ("serial",)

    def __init__(self, serial: int) -> None:
        self.serial = serial

    def __repr__(self) -> str:
        return f"VerificationGuard({self.serial})"


class VerificationEntry:
    """One producer id between its first question to the coordinator and its first append."""

    __slots__ = ("created_ms", "epoch", "guard", "lowest_sequence", "supports_epoch_bump")

    def __init__(
        self, guard: VerificationGuard, *, epoch: int, sequence: int, supports_epoch_bump: bool, now_ms: int
    ) -> None:
        self.guard = guard
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.supports_epoch_bump = supports_epoch_bump
        self.created_ms = now_ms

    def ask_again(self, *, epoch: int, sequence: int, supports_epoch_bump: bool) -> None:
        """Another batch of the producer wants verification: a lower sequence of the epoch, or a newer epoch, counts.

        Kafka keeps the protocol of the first question. A client that moves to TV2 does so with a newer epoch, so here
        the newer epoch brings its own protocol along and its guard outlives the marker of the last TV1 transaction.
        """
        if epoch > self.epoch:
            self.epoch = epoch
            self.lowest_sequence = sequence
            self.supports_epoch_bump = supports_epoch_bump
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


class VerificationTable:
    """The producers of one partition that wait for the coordinator's word."""

    __slots__ = ("_serial", "entries")

    def __init__(self) -> None:
        self.entries: dict[int, VerificationEntry] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self.entries)

    def start(
        self, producer_id: int, *, epoch: int, sequence: int, supports_epoch_bump: bool, now_ms: int
    ) -> VerificationGuard:
        """Create the producer's entry, or join the one that is there, and return its guard."""
        entry = self.entries.get(producer_id)
        if entry is None:
            self._serial += 1
            entry = VerificationEntry(
                VerificationGuard(self._serial),
                epoch=epoch,
                sequence=sequence,
                supports_epoch_bump=supports_epoch_bump,
                now_ms=now_ms,
            )
            self.entries[producer_id] = entry
        else:
            entry.ask_again(epoch=epoch, sequence=sequence, supports_epoch_bump=supports_epoch_bump)
        return entry.guard

    def on_data(self, producer_id: int) -> None:
        """A transactional data batch was appended: the open transaction is the proof from now on."""
        self.entries.pop(producer_id, None)

    def on_marker(self, producer_id: int, epoch: int) -> None:
        entry = self.entries.get(producer_id)
        if entry is not None and not (entry.supports_epoch_bump and entry.epoch == epoch):
            del self.entries[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        expired = [pid for pid, entry in self.entries.items() if now_ms - entry.created_ms >= expiration_ms]
        for producer_id in expired:
            del self.entries[producer_id]

    def clear(self) -> None:
        """Forget all entries. Serials go on, so that no guard is ever taken for another in a log line."""
        self.entries.clear()
