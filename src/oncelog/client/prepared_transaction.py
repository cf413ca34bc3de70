"""What the other side of a two-phase commit has to remember of a prepared transaction, and how that is completed."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from oncelog.client.admin_transactions import TransactionAdmin, TransactionDescription
from oncelog.client.attempts import doubted
from oncelog.client.cluster import Cluster
from oncelog.client.errors import (
    AbortableError,
    ConfigurationError,
    ErrorCode,
    FatalError,
    IllegalState,
    KafkaError,
    TransactionError,
)
from oncelog.client.shared_transaction import SharedTransaction
from oncelog.client.transaction import AsyncTransactionClient
from oncelog.core.ids import EPOCH_EXHAUSTED, ProducerIdAndEpoch

_NOT_OPEN: Final = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Answers to a commit that say that the transaction is not open under the identity given."""


class Completion(Enum):
    """What `complete` found and did.

    - COMMITTED: the transaction is committed, by this call or by an earlier one.
    - ENDED_BEFORE: it had ended, and its id has been used since, so the coordinator does not know any more how it
      ended. A program that calls `init_transactions` only after `complete` has returned knows that it was committed.
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
        return ProducerIdAndEpoch.of(self.producer_id, self.producer_epoch)

    @property
    def shared(self) -> SharedTransaction:
        """The transaction, as another process takes it over."""
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


async def resume(
    cluster: Cluster, prepared: PreparedTransaction, *, skip_epoch: bool, never_times_out: bool = False
) -> Completion:
    """Commit a transaction that no producer of this process holds. Raises AbortableError if it was aborted meanwhile.

    `skip_epoch`: before TV2, take the next epoch out of use. `never_times_out`: brokers have two-phase commit.
    """
    client = AsyncTransactionClient(cluster)
    try:
        await client.resume(prepared.shared, commit=True)
    except FatalError as error:
        if error.code not in _NOT_OPEN:
            raise
        await _raise_unless_ended(cluster, prepared, error, never_times_out=never_times_out)
        return Completion.ENDED_BEFORE
    if skip_epoch and not client.uses_tv2:
        try:
            await client.fresh_epoch()
        except TransactionError:
            pass  # committed, whoever owns the id by now
        except KafkaError as error:
            raise doubted(error)  # noqa: B904  # the error itself
    return Completion.COMMITTED


async def _raise_unless_ended(
    cluster: Cluster, prepared: PreparedTransaction, refusal: FatalError, *, never_times_out: bool
) -> None:
    """A commit was refused. Raise if the transaction is lost, or is still to be committed in another way."""
    name = prepared.transactional_id
    try:
        found = (await TransactionAdmin(cluster).describe_transactions([name]))[name]
    except KafkaError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        if never_times_out:
            return
        raise IllegalState(
            f"how the prepared transaction {prepared} ended is not known: its id was not used for so long that it is "
            "forgotten (transactional.id.expiration.ms), and the transaction may have timed out before. "
            "'oncelog txn history' tells"
        ) from refusal
    if found.state == "Ongoing" and (found.producer_id, found.producer_epoch) == prepared.identity:
        raise IllegalState(
            f"the prepared transaction {prepared} is open, and a newer producer of its id has taken it over: call "
            "init_transactions(keep_prepared=True) and then complete()"
        ) from refusal
    if _is_end_of(prepared, found) and found.state in ("CompleteAbort", "PrepareAbort"):
        raise AbortableError(
            refusal.code,
            f"the prepared transaction {prepared} was aborted before it was completed, most likely because of its "
            "timeout: do its work again. transaction.two.phase.commit.enable avoids that where brokers have it",
        ) from refusal


def _is_end_of(prepared: PreparedTransaction, found: TransactionDescription) -> bool:
    """Later transactions have later epochs. An end that uses up the epochs brings the next producer id."""
    if found.producer_id == prepared.producer_id:
        return found.producer_epoch <= prepared.producer_epoch + 1
    return prepared.producer_epoch >= EPOCH_EXHAUSTED and found.producer_epoch == 0
