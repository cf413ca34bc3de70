"""The abort that the coordinator decides by itself, against the will of the producer: a time-out, a newer producer,
a crash that may have taken a part of the transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from oncelog.coordinator.txn import epochs
from oncelog.coordinator.txn.config import TxnConfig
from oncelog.coordinator.txn.decision import Transition
from oncelog.coordinator.txn.epochs import AllocateProducerId
from oncelog.coordinator.txn.metadata import Fence, TxnEntry
from oncelog.coordinator.txn.results import IdResult
from oncelog.coordinator.txn.state import TxnState

R = TypeVar("R")

OwnAbort: TypeAlias = Callable[[TxnEntry, TxnConfig, AllocateProducerId, int], Transition[IdResult]]


def fencing_abort(
    entry: TxnEntry,
    config: TxnConfig,
    allocate_producer_id: AllocateProducerId,
    now_ms: int,
    why: str,
    response: R,
    *,
    then_wait: bool = False,
) -> Transition[R]:
    """Ongoing to PrepareAbort under a newer epoch. There is no client to ask: the finalised version decides how.

    The epoch is bumped once, by the abort itself (KAFKA-19367), and used up it rotates the producer id (KAFKA-20090).
    """
    target = epochs.ended(
        entry.metadata,
        TxnState.PREPARE_ABORT,
        config.transaction_version,
        now_ms,
        allocate_producer_id,
        fencing=True,
    )
    fence = Fence(entry.metadata.client_identity, why)
    return Transition(target, response, fence, is_epoch_fence=True, then_wait=then_wait)


def has_timed_out(entry: TxnEntry, now_ms: int) -> bool:
    metadata = entry.metadata
    return (
        metadata.state is TxnState.ONGOING
        and entry.pending_state is None
        and not metadata.never_times_out
        and metadata.start_ms + metadata.timeout_ms < now_ms
    )


def abort_timed_out(
    entry: TxnEntry, config: TxnConfig, allocate_producer_id: AllocateProducerId, now_ms: int
) -> Transition[IdResult]:
    metadata = entry.metadata
    why = f"the transaction timed out after {metadata.timeout_ms} ms and was aborted"
    response = IdResult(
        reason=f"{why}; it was open for {now_ms - metadata.start_ms} ms",
        transactional_id=entry.transactional_id,
        identity=metadata.client_identity,
    )
    return fencing_abort(entry, config, allocate_producer_id, now_ms, why, response)


def abort_doubtful(
    entry: TxnEntry, config: TxnConfig, allocate_producer_id: AllocateProducerId, now_ms: int
) -> Transition[IdResult]:
    why = "the transaction was aborted because a crash may have taken a part of it"
    response = IdResult(reason=why, transactional_id=entry.transactional_id, identity=entry.metadata.client_identity)
    return fencing_abort(entry, config, allocate_producer_id, now_ms, why, response)
