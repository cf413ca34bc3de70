"""What the other side of a two-phase commit has to remember of a prepared transaction."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from oncelog.client.errors import ConfigurationError
from oncelog.client.shared_transaction import SharedTransaction
from oncelog.core.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch


class Completion(Enum):
    """What `complete` found and did.

    - COMMITTED: the transaction is committed, by this call or by an earlier one.
    - ENDED_BEFORE: it had ended, and its id has been used since, so the coordinator does not know any more how it
      ended. A program that begins the next transaction only after `complete` has returned knows that it was committed.
    - OTHER_ABORTED: it is not the one that this producer holds prepared. That other one was aborted, because the other
      side does not remember it.
    """

    COMMITTED = "committed"
    ENDED_BEFORE = "ended before"
    OTHER_ABORTED = "another one was aborted"

    def __bool__(self) -> bool:
        raise TypeError("a Completion has three outcomes: compare it with one of them")


class PreparedTransaction(NamedTuple):
    """Written as `str`, read back with `parse`. It names one transaction: a later one of the same id is not meant."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int

    @property
    def identity(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(ProducerId(self.producer_id), ProducerEpoch(self.producer_epoch))

    @property
    def shared(self) -> SharedTransaction:
        """As another process takes it up."""
        return SharedTransaction(self.transactional_id, self.identity, self.transaction_version)

    def names_same(self, other: PreparedTransaction | None) -> bool:
        """Whether both name one transaction. Who remembers it does not matter, so neither does their protocol."""
        return other is not None and (self.transactional_id, self.identity) == (other.transactional_id, other.identity)

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.producer_epoch}:{self.transaction_version}:{self.transactional_id}"

    @classmethod
    def parse(cls, text: str) -> PreparedTransaction:
        """From what `str` gave. Raises ConfigurationError for anything else."""
        parts = text.split(":", 3)
        if len(parts) != 4 or not all(part.lstrip("-").isdigit() for part in parts[:3]):
            raise ConfigurationError(f"{text!r} is not a prepared transaction")
        return cls(parts[3], int(parts[0]), int(parts[1]), int(parts[2]))
