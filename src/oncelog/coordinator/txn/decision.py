"""What the rules of a request return, and the checks that several of them share.

The rules raise `KafkaError` to refuse; its message says why. Which id, producer and partition it is about is put in
front by the machine, once for all of them.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from oncelog.coordinator.txn.metadata import Fence, TxnEntry, TxnMetadata
from oncelog.coordinator.txn.state import NAME_OF, PREPARED
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import ProducerIdAndEpoch

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Transition(Generic[R]):
    """The request is accepted: log this value, then answer that."""

    target: TxnMetadata
    response: R
    fence: Fence | None = None
    """Whom this fences, to be remembered once it is committed."""
    is_epoch_fence: bool = False
    """The abort is the coordinator's own and passes through PrepareEpochFence."""
    then_wait: bool = False
    """The answer may be better once the id has settled."""


def check_not_pending(entry: TxnEntry) -> None:
    if entry.pending_state is not None:
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"its transition from {NAME_OF[entry.metadata.state]} to {NAME_OF[entry.pending_state]} is not finished",
        )


def check_not_prepared(entry: TxnEntry) -> None:
    if entry.metadata.state in PREPARED:
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"its transaction is in {NAME_OF[entry.metadata.state]}: the markers are being written",
        )


def check_not_doubtful(entry: TxnEntry, presented: ProducerIdAndEpoch) -> None:
    if entry.is_doubtful:
        raise fenced(entry, presented)


def check_producer_id(entry: TxnEntry, presented: ProducerIdAndEpoch) -> None:
    check_not_doubtful(entry, presented)
    current = entry.client_identity
    if presented.producer_id != current.producer_id:
        raise wrong_producer_id(entry, presented)


def check_identity(entry: TxnEntry, presented: ProducerIdAndEpoch) -> None:
    check_producer_id(entry, presented)
    if presented.epoch != entry.client_identity.epoch:
        raise fenced(entry, presented)


def wrong_producer_id(entry: TxnEntry, presented: ProducerIdAndEpoch) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"the id belongs to producer id {entry.client_identity.producer_id}: {entry.why_fenced(presented)}",
    )


def fenced(entry: TxnEntry, presented: ProducerIdAndEpoch) -> KafkaError:
    return KafkaError(ErrorCode.PRODUCER_FENCED, f"fenced: {entry.why_fenced(presented)}")
